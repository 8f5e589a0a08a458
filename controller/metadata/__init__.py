"""The fleet's trusted metadata (TUF): how it is made, checked, kept and renewed."""
