"""Variants for LiteRT."""
