"""The adapter of LiteRT and of tflite-runtime."""
