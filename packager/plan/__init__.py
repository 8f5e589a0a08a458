"""What a build will do: from facts about a model and profiles to ordered steps."""
