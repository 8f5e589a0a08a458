"""Runs the steps of a plan, from the cache or in separate processes, on this machine or others."""
