"""How far a transfer is, and when it may end. Pure.

Rules:
- A time that cannot be known is None: nothing is told of a transfer without a rate, or of one that
  nobody has heard of for a while.
"""

from __future__ import annotations

from typing import Final

import msgspec

LOCAL: Final = "local"
"""The device had these bytes already: whole files, kept parts, or chunks of another package."""

DELTA: Final = "delta"
HTTP: Final = "http"
PEER: Final = "peer"
"""From another device of the same site."""

MULTICAST: Final = "multicast"
MQTT: Final = "mqtt"
FILE: Final = "file"
"""The operator handed them over as a file."""

FOUND: Final = frozenset({LOCAL, FILE})
"""What is found on the device when a transfer begins."""

REPORT_MAX_S: Final = 10.0
"""A device whose transfer goes on reports at least this often."""

SILENT_S: Final = 3 * REPORT_MAX_S
"""After this time without news, figures are no longer shown as those of now: two reports may be
late or lost without harm, as on links that are cut and come back."""

LONGEST_S: Final = 366 * 86_400.0
"""Nobody waits longer; a device that lies may name a rate with which no number is left."""


class TransferProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one transfer, as they were at the last news."""

    done_bytes: int
    """Of the package, whichever way they came."""

    total_bytes: int
    rate_bytes_per_s: float | None = None
    """As `InstallReport.rate_bytes_per_s`; None while it is unknown."""

    bytes_by_source: dict[str, int] = {}
    """Of the package, not of the network: a delta of 1 KiB may bring a file of 1 MiB."""

    news_age_s: float = 0.0
    """How long ago the news came."""

    @property
    def silent(self) -> bool:
        """Whether the figures are too old to be shown as those of now."""
        return self.news_age_s > SILENT_S

    @property
    def rest_s(self) -> float | None:
        """The time until all has come if the rate stays as it is; None if nobody can tell."""
        rest_bytes = max(0, self.total_bytes - self.done_bytes)
        if rest_bytes == 0:
            return 0.0
        if self.silent or not self.rate_bytes_per_s:
            return None
        rest_s = rest_bytes / self.rate_bytes_per_s - self.news_age_s
        return max(0.0, rest_s) if rest_s <= LONGEST_S else None
