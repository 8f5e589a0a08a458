"""Pre- and post-processing that a variant declares: the same on the device as in the packager."""
