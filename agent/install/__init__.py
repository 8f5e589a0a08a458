"""Fetches a package onto the device and puts it into service safely."""
