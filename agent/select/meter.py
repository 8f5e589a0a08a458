"""Counts requests when they come, and their answers from the router's record of each.

Rules:
- A request counts when it comes: an overloaded worker answers as many as it can, whatever comes.
- One that turns out to be wrong counts no more: it takes no run, and a client that sends only such
  ones must not cost the others their accuracy.
- The counts since the last look are read and reset in one step: nothing is counted twice or lost.
- Which requests came together is told by those that were answered: one that is wrong must not make
  a batch of the others. One that came when the other was answered did not come together with it:
  a client that waits for each answer sends no batches.
- Memory is bounded: beyond `MAX_VARIANTS` the variant that came first is forgotten, and so is the
  first of `MAX_WINDOWS` times.
"""

from __future__ import annotations

import bisect
import math
import threading
from typing import Final

import msgspec

from agent.select.batches import WINDOW_S, Together
from agent.select.estimates import Observed
from agent.serve.answered import Answered, Outcome
from wire.clock import Clock

MAX_VARIANTS: Final = 64
MAX_WINDOWS: Final = 1024
"""More than a minute and a half; a request whose answer took longer counts as one that came alone.
"""

MAX_TOGETHER: Final = 64
"""Requests of one moment that are told apart: as many as may wait."""

SHORTEST_MS: Final = 1e-3
"""No clock tells latencies below this apart."""

MS_PER_S: Final = 1000.0


class Served(msgspec.Struct, kw_only=True):
    """The counts of one variant, or of several."""

    requests: float = 0.0
    """Requests that came, to all variants; refused ones, and those that met no variant, are
    included, but no wrong ones."""

    answered: float = 0.0
    pairs: float = 0.0
    """Of two answered requests that came together."""

    in_time: float = 0.0
    """Answers within the deadline; all of them where there is none."""

    refused: float = 0.0
    """Requests that got no answer because too many came, or workers failed."""

    deferred_s: float = 0.0
    """Time in the runtime for deferrable requests, which count nowhere else: they are no demand."""

    samples: float = 0.0
    """Samples in the answered requests."""

    compute_s: float = 0.0
    """Time in the runtime, for the answered requests."""

    latency_s: float = 0.0
    """Sum of the latencies of the answers, waits included."""

    logs: float = 0.0
    log_squares: float = 0.0
    """Sums of the logarithms of the times in the runtime per sample in ms, and their squares."""


class Meter:
    """Counts requests. For any thread.

    Args:
        clock: Tells when an answered request came.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline_ms = math.inf
        """Within which an answer is in time; set by who knows the objective."""

        self._lock = threading.Lock()
        self._requests = 0.0
        self._variants: dict[str, Served] = {}
        self._since: tuple[Served, set[str]] = (Served(), set())
        """The counts since the last look, and the variants that answered."""

        self._windows: dict[int, list[float]] = {}
        """When those that came in each short time were answered, in this order."""

    def came(self) -> None:
        """Count a request that has come."""
        self._request(1.0)

    def count(self, answered: Answered) -> None:
        """Count an answer.

        Args:
            answered: The record of the request.
        """
        if answered.is_before:  # as the work of another program
            return
        if answered.outcome in {Outcome.UNKNOWN_MODEL, Outcome.INVALID}:
            if not answered.deferred:
                self._request(-1.0)  # nobody knew when it came
            return
        with self._lock:
            if answered.deferred:
                self._since[0].deferred_s += answered.compute_s
                return
            if answered.outcome is not Outcome.OK:
                self._since[0].refused += float(answered.outcome is Outcome.REFUSED)
                return
            self._since[0].pairs += self._came_with(answered.total_s)
            samples = max(answered.samples, 1)
            log = math.log(max(answered.compute_s * MS_PER_S / samples, SHORTEST_MS))
            self._since[1].add(answered.variant)
            for served in (self._since[0], self._variant(answered.variant)):
                served.answered += 1.0
                served.in_time += float(answered.total_s * MS_PER_S <= self.deadline_ms)
                served.samples += samples
                served.compute_s += answered.compute_s
                served.latency_s += answered.total_s
                served.logs += log
                served.log_squares += log * log

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was counted since the last look."""
        since, variants = self._since
        return not variants and since == Served()

    def take(self) -> tuple[Served, frozenset[str]]:
        """Return the counts since the last call and the variants that answered, and reset them."""
        with self._lock:
            (served, variants), self._since = self._since, (Served(), set())
            # A request that came before the last look, and turned out to be wrong after it.
            self._since[0].requests = min(served.requests, 0.0)
        return served, frozenset(variants)

    def served(self, variant: str | None) -> Served:
        """Return the counts since the agent started.

        Args:
            variant: The variant whose answers are counted; the requests are those of all.
        """
        with self._lock:
            known = self._variants.get(variant or "", Served())
            return msgspec.structs.replace(known, requests=self._requests)

    def _request(self, count: float) -> None:
        with self._lock:
            self._since[0].requests += count
            self._requests += count

    def _came_with(self, ago_s: float) -> int:
        """Return how many others, already answered, came together with one that is answered now."""
        now_s = self._clock.monotonic_s()
        came_s = now_s - ago_s
        answered_s = self._windows.setdefault(int(came_s // WINDOW_S), [])
        others = len(answered_s) - bisect.bisect_right(answered_s, came_s)
        if len(answered_s) < MAX_TOGETHER:
            answered_s.append(now_s)
        if len(self._windows) > MAX_WINDOWS:
            del self._windows[min(self._windows)]
        return others

    def _variant(self, name: str) -> Served:
        known = self._variants.setdefault(name, Served())
        if len(self._variants) > MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]
        return known


def observed(
    since: tuple[Served, frozenset[str]],
    variant: str | None,
    *,
    alone_ms: float | None,
    held_bytes: int,
    period_s: float,
    cpu_share: float,
    waiting: int = 0,
    workers: int = 1,
) -> Observed | None:
    """Return the observations of a period for a policy.

    Several workers are taken for as many queues, each with its share of the requests. A request
    goes to the one with the fewest, so it waits no longer than that says.

    Args:
        since: The result of `Meter.take`.
        variant: The variant that serves; None if there is none.
        alone_ms: Its latency alone on the device.
        held_bytes: Memory that its worker holds.
        period_s: Length of the period.
        cpu_share: Share of the processor that one computing request takes.
        waiting: Requests that wait for their turn now.
        workers: In how many workers the variant runs.

    Returns:
        The observations; None if nothing serves or no time has passed.
    """
    if variant is None or period_s <= 0.0:
        return None
    served, variants = since
    answered, all_share = served.answered, min(cpu_share * workers, 1.0)
    computed_s = (served.compute_s + served.deferred_s) / workers
    return Observed(
        variant=variant,
        alone_ms=alone_ms,
        held_bytes=held_bytes,
        requests=max(served.requests, 0.0) / workers,
        together=_together(served, workers),
        answered=answered,
        in_time=_in_time(served),
        samples=served.samples,
        compute_s=served.compute_s,
        latency_ms=served.latency_s / answered * MS_PER_S if answered else None,
        log_variance=_log_variance(served),
        waiting=waiting / workers,
        own_load=min(computed_s / period_s, 1.0) * all_share,
        cpu_share=all_share,
        mixed=bool(variants - {variant}),
    )


def _together(served: Served, workers: int) -> Together | None:
    if not served.answered:
        return None
    # Of two that came by chance, one was there when the other came, or the other way round.
    within_s = min(2.0 * served.latency_s / served.answered, WINDOW_S)
    # Of those that came together, each worker gets its share.
    return Together(
        requests=served.answered / workers, pairs=served.pairs / workers**2, within_s=within_s
    )


def _in_time(served: Served) -> float:
    """Return the answers in time, less where requests were refused.

    A refused request was not in time either. If only answers counted, a device that sheds half of
    its requests would seem to keep up.
    """
    decided = served.answered + served.refused
    return served.in_time * served.answered / decided if decided else 0.0


def _log_variance(served: Served) -> float | None:
    if served.answered < 2.0:  # noqa: PLR2004 - one answer has no spread
        return None
    squares = served.log_squares - served.logs**2 / served.answered
    return max(squares, 0.0) / (served.answered - 1.0)
