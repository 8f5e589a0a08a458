"""Inference: the endpoint, the model server, and the worker processes behind it."""
