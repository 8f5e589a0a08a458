"""Numbers of things as text for people. Pure."""

from __future__ import annotations


def counted(devices: int) -> str:
    """Return a number of devices as text: `1 device`, `2 devices`."""
    return "1 device" if devices == 1 else f"{devices} devices"
