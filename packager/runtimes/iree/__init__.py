"""Variants that IREE compiles."""
