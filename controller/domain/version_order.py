"""The order of versions, as `1.9` before `1.10`. Pure.

Rules:
- Numbers are compared as numbers, and zeros at the end do not count: `1.2` is as `1.2.0`.
- What follows the numbers makes a version earlier (`1.2.0-rc1`, `1.2.0.dev3`), but `post` makes it
  later. Words are in the order of the alphabet. What follows a `+` does not count.
- A text that does not begin with a number, or with `v` and a number, is no version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

OrderKey = tuple[tuple[int, ...], int, tuple[tuple[int, int, str], ...]]
"""What versions are sorted by."""

_VERSION: Final = re.compile(
    r"v?(?P<numbers>[0-9]+(?:\.[0-9]+)*)(?P<rest>[A-Za-z0-9._-]*)(?:\+.*)?", re.ASCII
)
_PIECE: Final = re.compile(r"[0-9]+|[A-Za-z]+")
_BEFORE, _RELEASE, _AFTER = -1, 0, 1
MAX_VERSION_CHARS: Final = 64


def order_key(text: str) -> OrderKey | None:
    """Return what a version is sorted by; None if the text is no version."""
    found = _VERSION.fullmatch(text) if len(text) <= MAX_VERSION_CHARS else None
    if found is None:
        return None
    numbers = [int(part) for part in found["numbers"].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    pieces = _PIECE.findall(found["rest"])
    return tuple(numbers), _rank(pieces), tuple(map(_piece, pieces))


def _rank(pieces: Sequence[str]) -> int:
    if not pieces:
        return _RELEASE
    return _AFTER if pieces[0].lower() == "post" else _BEFORE


def _piece(text: str) -> tuple[int, int, str]:
    """Return a number or a word as it is sorted: numbers first, as in Semantic Versioning."""
    return (0, int(text), "") if text.isdecimal() else (1, 0, text.lower())
