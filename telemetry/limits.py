"""What a point may hold, on the device and in the store. Pure."""

from __future__ import annotations

from typing import Final

MAX_ATTRIBUTES: Final = 8
MAX_TEXT: Final = 128
"""Longest metric name, attribute name and attribute value, in characters."""


def is_name(text: str) -> bool:
    """Tell whether a text may name a metric or an attribute.

    Args:
        text: Such as `inference_latency_ms`, or `process.memory.usage` as OpenTelemetry has it.

    Returns:
        Whether it begins with a lower-case ASCII letter, goes on with such letters, digits, `_` and
        single dots, does not end with a dot, and is not longer than `MAX_TEXT`.
    """
    return (
        len(text) <= MAX_TEXT
        and text.isascii()
        and text[:1].isalpha()
        and all(part.replace("_", "a").isalnum() for part in text.split("."))
        and text == text.lower()
    )
