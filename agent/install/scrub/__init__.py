"""Reads stored packages again, slowly, and finds what the storage has damaged."""
