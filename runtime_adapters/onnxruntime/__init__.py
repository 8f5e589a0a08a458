"""The adapter of ONNX Runtime."""
