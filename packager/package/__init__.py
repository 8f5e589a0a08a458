"""Packages: composed from what a build found, signed, opened and compared."""
