"""What a package says of its origin: a bill of materials, and the provenance of its build."""
