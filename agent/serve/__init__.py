"""Inference: the endpoint, the switchboard, and the worker processes behind them."""
