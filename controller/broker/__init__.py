"""The broker: a local Mosquitto, and accounts with least privilege."""
