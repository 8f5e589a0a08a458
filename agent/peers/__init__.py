"""Serves the other devices of the site what this one has: blobs of packages, by signed links."""
