"""What the other models of a device take from one. Pure values."""

from __future__ import annotations

from typing import Final

import msgspec


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """What the other models of the device take: seen in a period, or planned."""

    load: float = 0.0
    """Share of the processor."""

    usual_load: float = 0.0
    """The same, at the usual rates of their requests."""

    held_bytes: int = 0
    mixed: bool = False
    """Whether a variant of theirs was loaded, so that the load is not only that of serving."""


NO_OTHERS: Final = Others()
