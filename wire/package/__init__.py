"""What lies inside a package: its manifest, the index of its files, declared processing."""
