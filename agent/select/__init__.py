"""Chooses the variant that serves: the policies, their inputs, and the adaptation."""
