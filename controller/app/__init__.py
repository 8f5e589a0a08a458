"""The process: settings, data directory, log, threads."""
