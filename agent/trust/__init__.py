"""What this device trusts: the fleet's metadata (TUF), kept and checked."""
