"""The daemon: its configuration, its parts, its threads, and its local control socket."""
