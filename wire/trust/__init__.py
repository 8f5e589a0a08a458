"""Signatures, and the keys that may make them."""
