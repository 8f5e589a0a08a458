"""Fetches what a device needs of a package, and goes on where it stopped."""
