"""The HTTP API: the one way in for the command line and for other programs."""
