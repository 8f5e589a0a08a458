"""Other people's tools: found, installed, called quietly."""
