"""Variants for OpenVINO."""
