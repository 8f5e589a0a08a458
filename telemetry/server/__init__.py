"""Ingest, store and queries at the controller."""
