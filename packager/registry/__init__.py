"""Packages in an OCI registry: how they lie there, and how they get there and back."""
