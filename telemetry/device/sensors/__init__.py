"""How hot, full and busy this device is, from the kernel's own files."""

from telemetry.device.sensors.reader import Sensors

__all__ = ["Sensors"]
