"""Hands telemetry on to other systems: to Prometheus, which asks, and to a collector of OTLP."""
