"""The daemon: its configuration, its parts, its threads, and what it answers locally."""
