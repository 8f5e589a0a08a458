"""Measures how good a variant is, and decides which variants a package gets."""
