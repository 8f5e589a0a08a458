"""A second release beside the one that serves, of which nothing reaches a client."""
