"""Alerts: rules over the telemetry, and what becomes of each group that they judge."""
