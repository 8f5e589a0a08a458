"""What the selector's benchmark replays, and its page."""
