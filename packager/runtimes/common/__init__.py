"""What the makers of variants share."""
