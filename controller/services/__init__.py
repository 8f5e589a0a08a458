"""What the controller does: each module one kind of work, in transactions of its own."""
