"""The on-device daemon: installs packages safely, serves inference, chooses the variant."""
