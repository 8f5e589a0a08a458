"""The adapter of no runtime, for tests and dry runs."""
