"""Reads the user's samples, prepares them for the model, splits them and stores them on disk."""
