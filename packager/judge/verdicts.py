"""The decision about a candidate for a profile. Pure."""

from __future__ import annotations

import msgspec


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a candidate for a profile."""

    kept: bool
    reason: str
    excess: float | None = None
    """How far it misses the gate that refused it, as a share of the limit; None without a miss."""

    instead: str = ""
    """The shipped variant that another one beats or stands for; empty for any other verdict."""

    evaluated: bool = True
    """False for what is so slow that its answers were not looked at."""

    doubt: str = ""
    """Why the samples cannot tell whether a kept variant passes the gates; empty if they can."""


Verdicts = dict[str, dict[str, Verdict]]
"""Profile to candidate to verdict."""
