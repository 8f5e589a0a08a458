"""Composes packages from the results of a build; signs, opens and compares them."""
