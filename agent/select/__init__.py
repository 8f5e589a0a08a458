"""Chooses the variant that serves: the policies, their inputs, and what carries them out."""
