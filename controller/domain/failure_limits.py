"""Which failures count against which limit of a rollout, and what may still come. Pure.

Rules:
- A device has refused if it said no before it fetched a file: to the desired state, or in its
  preflight. It has timed out if nobody knows an outcome of it: it was silent past its deadline, or
  lost. All others have failed.
- A kind of failure with a limit of its own counts against that limit alone. Without one it counts
  as failed, also in the share of failed devices.
- The share of failed devices is certain for those with an outcome. At worst all others that have
  the order fail, too: those in flight, and those away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from controller.domain.deployment_codes import LOST, SILENT
from controller.domain.rollout_view import RolloutView

_ROAD: Final = ("agent.fetch", "agent.attempts", "wire.transport")
"""Codes of devices that wanted to take the release, and could not."""

WHOLE_PERCENT: Final = 100
NO_BOUND: Final = 10**9


class FailureKind(StrEnum):
    """In which way a device failed."""

    FAILED = "failed"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


def failure_kind(error_code: str, phase: str) -> FailureKind:
    """Return in which way a device failed.

    Args:
        error_code: Why, as its deployment has it.
        phase: In which phase of the install; empty if it had begun none.
    """
    if error_code in {SILENT, LOST}:
        return FailureKind.TIMED_OUT
    if phase in {"", "preflight"} and not error_code.startswith(_ROAD):
        return FailureKind.REFUSED
    return FailureKind.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCounts:
    """How many devices failed in which way, without those that the operator acknowledged."""

    failed: int = 0
    refused: int = 0
    timed_out: int = 0

    def counting(self, *, max_refused: int | None, max_timed_out: int | None) -> int:
        """Return how many count as failed: kinds with a limit of their own do not."""
        refused = self.refused if max_refused is None else 0
        return self.failed + refused + (self.timed_out if max_timed_out is None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of failed devices."""

    failed: int
    finished: int
    """Devices with an outcome, those that failed among them."""

    unknown: int = 0
    """Devices that have the order and no outcome."""

    @property
    def certain_percent(self) -> float:
        """The share of devices with an outcome that failed."""
        return _percent(self.failed, self.finished)

    @property
    def worst_percent(self) -> float:
        """What it comes to if every device without an outcome fails."""
        return _percent(self.failed + self.unknown, self.finished + self.unknown)

    def room(self, most_percent: float, least_finished: int) -> int:
        """Return how many more may start so that the share is kept, whatever becomes of them.

        Args:
            most_percent: The greatest share.
            least_finished: So many must have finished before the share counts.
        """
        if most_percent >= WHOLE_PERCENT:
            return NO_BOUND
        known, bad, most = self.finished + self.unknown, self.failed + self.unknown, most_percent
        uncounted = least_finished - 1 - known
        # With k more, all of them bad, the share is (bad + k) / (known + k).
        within = (Fraction(most) * known - WHOLE_PERCENT * bad) / (WHOLE_PERCENT - Fraction(most))
        return max(0, uncounted, math.floor(within))


def _percent(part: int, of: int) -> float:
    return 100.0 * part / of if of else 0.0


def failures(view: RolloutView, *, gone: int = 0) -> FailureCounts:
    """Return how many devices failed in which way, without those that were acknowledged.

    Args:
        view: What is known.
        gone: Devices in flight that are past their deadline, or lost.
    """
    others = view.failed - view.acknowledged - view.refused - view.timed_out
    return FailureCounts(failed=others, refused=view.refused, timed_out=view.timed_out + gone)


def share_of(view: RolloutView, *, gone: int = 0) -> Share:
    """Return the share of failed devices, as it is certain and as it may become.

    Args:
        view: What is known.
        gone: Devices in flight that are past their deadline, or lost.
    """
    limits = view.limits
    failed = failures(view, gone=gone).counting(
        max_refused=limits.max_refused, max_timed_out=limits.max_timed_out
    )
    finished = view.finished - view.acknowledged + gone
    return Share(
        failed=failed,
        finished=finished,
        unknown=len(view.in_flight) - gone + view.waiting,
    )
