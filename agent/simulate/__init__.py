"""Plays many devices over the real broker: `fleet simulate`."""
