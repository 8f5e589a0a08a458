"""Signatures and who may make them."""
