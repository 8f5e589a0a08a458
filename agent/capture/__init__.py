"""Samples of requests for the fleet's operator: what is taken, kept and sent."""
