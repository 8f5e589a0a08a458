"""Runs the operator's executables around the states of an install; they may delay or stop it."""
