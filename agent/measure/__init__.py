"""Measures packages for the fleet on this device, beside what it serves."""
