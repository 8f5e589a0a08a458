"""The parts of the benchmark of our packager beside other quantizers."""
