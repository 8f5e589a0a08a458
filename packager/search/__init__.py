"""The search for the best variants: its space, its goals, who chooses what is tried next."""
