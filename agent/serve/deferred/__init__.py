"""Requests that may wait until the device has nothing better to do, and their answers."""
