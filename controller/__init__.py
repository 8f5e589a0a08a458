"""Devices, releases and rollouts: the fleet's manager."""
