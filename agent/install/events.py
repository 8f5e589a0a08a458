"""The event that records how an install ended. Pure.

Rules:
- Only a package that this device did not have is told as installed. One that it had serves again:
  that is a restore, or a repair.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wire.installs import InstallReport, ReleaseRef

INSTALL: Final = "install"
RESTORE: Final = "restore"
BYTES_METRIC: Final = "install_bytes_total"
"""Counts the bytes of packages that came, by `source` (`wire.progress`)."""

DURATION_METRIC: Final = "install_duration_s"
"""From the order to its outcome, by `outcome`. One that a restart interrupted is left out."""


class Ending(NamedTuple):
    """How an install ended, for people."""

    kind: str
    """Kind of the event."""

    reason: str
    release: str | None
    """Name and version; None if no release was desired."""


def ending(
    report: InstallReport | None, target: ReleaseRef | None, *, repairing: bool, known: bool
) -> Ending:
    """Return how an install ended.

    Args:
        report: The outcome; None if a newer desired state ended the install.
        target: The release; None if none was desired.
        repairing: Whether the install brought back what was lost or damaged.
        known: Whether the device had the package before.

    Returns:
        The parts of the event.
    """
    release = f"{target.name}:{target.version}" if target else None
    kind = INSTALL
    if report is None:
        reason = "stopped because a newer desired state arrived"
    elif report.outcome != "succeeded":
        reason = report.detail or report.outcome
    elif release is None:
        reason = "no release is desired; nothing was installed"
    elif repairing:
        reason = f"{release} is repaired"
    elif known:
        kind, reason = RESTORE, f"{release} was on this device already; it serves"
    else:
        reason = report.outcome
    return Ending(kind, reason, release)
