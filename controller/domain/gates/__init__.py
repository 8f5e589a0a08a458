"""Gates of a rollout: what a release may do to what devices measure, and whether it does."""
