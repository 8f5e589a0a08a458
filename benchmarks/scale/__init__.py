"""What the benchmark of large fleets consists of."""
