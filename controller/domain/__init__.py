"""Decisions about the fleet. Pure: values in, values out."""
