"""Which variant serves: policies, what they decide from, and what carries their decisions out."""
