"""What a build found, for people: tables, a page, plots."""
