"""Brings the blobs of releases to the devices."""
