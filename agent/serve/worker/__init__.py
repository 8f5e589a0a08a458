"""The worker process: one loaded variant. Nothing here runs in the supervisor."""
