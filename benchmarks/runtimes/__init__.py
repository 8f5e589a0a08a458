"""Models in every runtime's form, and how each runtime is called without an adapter."""
