"""One folder per runtime: how its variants are made, and run under emulation."""
