"""What each layer of a variant costs, as its runtime tells it, and the memory in between."""
