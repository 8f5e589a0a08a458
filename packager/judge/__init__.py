"""How good a variant is, and which ones a package gets."""
