"""The adapter of models that TVM compiled."""
