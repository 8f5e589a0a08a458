"""Samples: read from what a user has, prepared for the model, split, and kept on disk."""
