"""Rehearsals: what a rollout would have done, in virtual time, by what its fleet has shown."""
