"""In which order the devices of a rollout start. Pure.

Rules:
- It is a shuffle by hash, so that the first stage is a fair sample of the fleet, and so that every
  process, and everybody who knows the identifier of the rollout, finds the same one.
"""

from __future__ import annotations

import hashlib
from typing import Final

PLACE_BYTES: Final = 3
TAIL: Final = 1 << 8 * PLACE_BYTES
"""Added to the places of devices that join later, so that they start after all others."""


def position(rollout: str, device: str) -> int:
    """Return the place of a device: those with lower ones start first, then by name."""
    return int.from_bytes(hashlib.sha256(f"{rollout}/{device}".encode()).digest()[:PLACE_BYTES])
