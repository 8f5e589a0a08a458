"""Two versions of one model, for benchmarks/deltas.py: trained, quantised, changed."""
