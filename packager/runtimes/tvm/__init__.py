"""Variants that TVM compiles."""
