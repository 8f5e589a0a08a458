"""The adapter of modules that IREE compiled."""
