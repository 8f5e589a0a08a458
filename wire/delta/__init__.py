"""Deltas between two versions of a model's file: made by the controller, applied by the device.

A delta is a list of segments: copies, differences of numbers, patches and literal bytes. Whoever
applies one needs to know nothing of the formats of models.
"""
