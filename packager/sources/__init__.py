"""One module per kind of model that a user hands in."""
