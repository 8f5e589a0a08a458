"""The content of a package: its manifest, the index of its files, declared processing."""
