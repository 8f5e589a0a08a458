"""The adapter of OpenVINO."""
