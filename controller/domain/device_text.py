"""Text that a device sent, before it is stored, logged or shown. Pure."""

from __future__ import annotations


def clean(text: str, max_chars: int) -> str:
    """Return a device's text as one bounded line that every database accepts."""
    return "".join(char if char.isprintable() else " " for char in text[:max_chars])
