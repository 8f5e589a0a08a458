"""Counts what packages cost a network and the storage, and says when they have had enough."""
