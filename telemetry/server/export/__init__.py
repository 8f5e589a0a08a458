"""What other systems get of the telemetry: measurements once they are settled, and events."""
