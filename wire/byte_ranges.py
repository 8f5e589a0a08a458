"""Byte ranges of HTTP: which part of a file a request asks for. Pure.

Rules:
- One range of bytes at a time. A request for several, or for an impossible one, is refused: whoever
  ignored its `Range` would send the whole file instead.

Source:
    RFC 9110, sections 13.1.5 (If-Range), 14.1.2 (byte ranges), 14.2 (Range), 15.5.17 (416).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

UNIT: Final = b"bytes="
_SPECIFIER: Final = re.compile(rb"([0-9]{0,19})-([0-9]{0,19})")


class Part(NamedTuple):
    """Bytes of a file."""

    first: int
    end: int
    """The byte after the last."""


class RangeNotSatisfiableError(ValueError):
    """No part, or more than one, is what a `Range` asks for."""


def wanted_part(
    ranges: Sequence[bytes], if_range: bytes | None, *, size_bytes: int, etag: bytes
) -> Part | None:
    """Return the part that a GET asks for.

    Args:
        ranges: The content of its `Range` fields.
        if_range: That of its `If-Range`; None without one.
        size_bytes: Of the file.
        etag: The file's strong entity tag, in quotes.

    Returns:
        The part; None for the whole file.

    Raises:
        RangeNotSatisfiableError: It is none of this file, or not a single one.
    """
    if not ranges or (if_range is not None and if_range.strip() != etag):
        return None
    text = b",".join(ranges).strip()
    if text[: len(UNIT)].lower() != UNIT:
        return None  # units that a server does not know it has to ignore
    found = _SPECIFIER.fullmatch(text[len(UNIT) :].strip())
    if found is None or not (found[1] or found[2]):
        raise RangeNotSatisfiableError
    if found[1]:
        first, end = int(found[1]), min(int(found[2] or size_bytes) + 1, size_bytes)
    else:
        first, end = max(size_bytes - int(found[2]), 0), size_bytes
    if first >= end:
        raise RangeNotSatisfiableError
    return Part(first, end)
