"""The figures of a transfer while it runs: what has come, which way, how fast. Pure.

Rules:
- What the device had already is no transfer: it has no rate, and the time of finding it counts for
  none.
- A report costs the controller work: each is as far from the one before as a tenth of the time that
  the transfer has taken, from `REPORT_MIN_S` to `wire.progress.REPORT_MAX_S`. So the figures are at
  most a tenth out of date, the first seconds are lively, and a thousand devices with long transfers
  send a hundred reports a second and not a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from wire.progress import FOUND, LOCAL, REPORT_MAX_S, TransferProgress

RATE_AGE_S: Final = 10.0
"""After this time a second weighs 1/e of what it weighed when it was new."""

RATE_LEAST_S: Final = 1.0
"""So much of a transfer must have been seen before a rate is told."""

_LEAST_WEIGHT_S: Final = -RATE_AGE_S * math.expm1(-RATE_LEAST_S / RATE_AGE_S)
"""What all weights then sum up to; a little less, because sums of parts are inexact."""

REPORT_MIN_S: Final = 1.0
REPORT_SHARE: Final = 0.1


class Progress(Protocol):
    """Takes how the fetch of a package goes on."""

    def begin(self, total_bytes: int, here_bytes: int, source: str = LOCAL) -> None:
        """Take the size of all files, and of those that are here whole, and why they are."""
        ...

    def came(self, size_bytes: int, source: str) -> None:
        """Take that more of the package is here, and which way it came (`wire.progress`)."""
        ...

    @property
    def rest_s(self) -> float | None:
        """The time until all is here; None if nobody can tell."""
        ...


class Rate:
    """The rate of a transfer: an exponentially weighted mean over time.

    The rate of the time t before now has the weight exp(-t / RATE_AGE_S); what comes is taken to
    have come evenly since the arrival before. The sum of the weights is kept beside the weighted
    sum, so the first values are not drawn to zero. Without that division it is the exponential
    moving average with next-point interpolation for samples at uneven times (Eckner 2012,
    "Algorithms for Unevenly Spaced Time Series: Moving Averages and Other Rolling Operators").
    """

    def __init__(self) -> None:
        self._weighted_bytes = 0.0
        self._weighted_s = 0.0
        self._since_s: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """The rate at the last arrival; None before `RATE_LEAST_S` have been seen."""
        if self._weighted_s < _LEAST_WEIGHT_S * (1 - 1e-9):
            return None
        return self._weighted_bytes / self._weighted_s

    def pause(self, now_s: float) -> None:
        """Leave out the time since the last arrival: nothing was being transferred."""
        self._since_s = now_s

    def add(self, size_bytes: int, now_s: float) -> None:
        """Take that bytes have come.

        Args:
            size_bytes: How many.
            now_s: Monotonic time.
        """
        passed_s = max(0.0, now_s - self._since_s) if self._since_s is not None else 0.0
        self._since_s = now_s
        gained_s = -RATE_AGE_S * math.expm1(-passed_s / RATE_AGE_S)
        share = gained_s / passed_s if passed_s > 0 else 1.0
        kept = math.exp(-passed_s / RATE_AGE_S)
        self._weighted_bytes = self._weighted_bytes * kept + size_bytes * share
        self._weighted_s = self._weighted_s * kept + gained_s


class TransferMeter:
    """The figures of one install's transfer.

    Args:
        now_s: Returns monotonic time.
        on_came: Called after each gain with its size and source.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        on_came: Callable[[int, str], None] = lambda _size, _source: None,
    ) -> None:
        self._now_s = now_s
        self._on_came = on_came
        self._clear()
        self._install_s: float | None = None

    def begin_install(self) -> None:
        """Forget all: another install begins."""
        self._clear()
        self._install_s = self._now_s()

    @property
    def duration_s(self) -> float | None:
        """The time since the install began; None for one that a restart interrupted."""
        return None if self._install_s is None else self._now_s() - self._install_s

    def _clear(self) -> None:
        self._rate = Rate()
        self._began_s: float | None = None
        self._news_s = self._reported_s = -math.inf
        self._done_bytes = self._total_bytes = 0
        self._by_source: dict[str, int] = {}

    def begin(self, total_bytes: int, here_bytes: int, source: str = LOCAL) -> None:
        """Take the size of all files, and of those that are here whole, and why they are.

        A transfer that is tried again begins again: what came before counts once.
        """
        now_s = self._now_s()
        self._rate.pause(now_s)
        self._news_s = now_s
        if self._began_s is None:
            self._began_s = now_s
        self._total_bytes, self._done_bytes = total_bytes, 0
        self._gain(here_bytes, source)

    def came(self, size_bytes: int, source: str) -> None:
        """Take that more of the package is here, and which way it came."""
        now_s = self._now_s()
        if source in FOUND:
            self._rate.pause(now_s)
        else:
            self._rate.add(size_bytes, now_s)
        self._news_s = now_s
        self._gain(size_bytes, source)

    def is_due(self) -> bool:
        """Tell whether it is time for the next report."""
        now_s = self._now_s()
        taken_s = now_s - self._began_s if self._began_s is not None else 0.0
        rest_s = min(max(REPORT_MIN_S, REPORT_SHARE * taken_s), REPORT_MAX_S)
        return now_s - self._reported_s >= rest_s

    def reported(self) -> None:
        """Note that a report has been sent."""
        self._reported_s = self._now_s()

    @property
    def rest_s(self) -> float | None:
        """The time until all is here; None if nobody can tell."""
        return self.figures.rest_s

    @property
    def figures(self) -> TransferProgress:
        """The figures now; may be asked for by any thread."""
        return TransferProgress(
            done_bytes=self._done_bytes,
            total_bytes=self._total_bytes,
            rate_bytes_per_s=self._rate.bytes_per_s,
            bytes_by_source=self._by_source,
            news_age_s=max(0.0, self._now_s() - self._news_s) if self._began_s is not None else 0.0,
        )

    def _gain(self, size_bytes: int, source: str) -> None:
        self._done_bytes = min(self._done_bytes + size_bytes, self._total_bytes)
        if source in FOUND:
            # What came in an earlier try is found here, too: it is counted as what it came as.
            size_bytes = max(0, self._done_bytes - sum(self._by_source.values()))
        if size_bytes > 0:
            # A new dictionary: another thread may be reading the one before.
            counted = self._by_source.get(source, 0) + size_bytes
            self._by_source = {**self._by_source, source: counted}
            self._on_came(size_bytes, source)
