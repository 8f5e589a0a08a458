"""The controller's work: each module does one kind, in its own transactions."""
