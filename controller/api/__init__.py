"""The HTTP API: the only access for the command line and for other programs."""
