"""Variants for ONNX Runtime."""
