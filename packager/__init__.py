"""Turns a model into tested variants in one signed package. It never runs on a device."""
