"""What the process that checks metadata gets, and what comes of it."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.trust.floors import Floors
from agent.trust.trusted import Trusted

MAX_BYTES: Final = 4 * 1024 * 1024


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to check."""

    root: str
    """Path of the first root, which came with the device."""

    trusted: str
    """Folder of the metadata that was believed before; it may be empty. The process changes it."""

    incoming: str
    """Folder of the files that have come."""

    models: tuple[str, ...]
    """The models whose releases are wanted."""

    floors: Floors


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    trusted: Trusted | None = None
    """None if nothing can be believed."""

    floors: Floors = Floors()
    code: str = ""
    """Which attack or fault it looks like; empty if all is well."""

    fault: str = ""
    """What is wrong, for people: with all of it, if nothing is trusted, else with a list."""

    missing: tuple[str, ...] = ()
    """Roles whose files have not come."""
