"""Sensors, histograms and spool on the device; ingest, store and queries at the controller."""
