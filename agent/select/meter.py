"""Counts requests, their answers and latencies from the router's record of each request.

Rules:
- The counts since the last look are read and reset in one step: nothing is counted twice or lost.
- Memory is bounded: beyond `MAX_VARIANTS` the variant that came first is forgotten.
"""

from __future__ import annotations

import math
import threading
from typing import Final

import msgspec

from agent.select.estimates import Observed
from agent.serve.answered import Answered, Outcome

MAX_VARIANTS: Final = 64
SHORTEST_MS: Final = 1e-3
"""No clock tells latencies below this apart."""

MS_PER_S: Final = 1000.0


class Served(msgspec.Struct, kw_only=True):
    """The counts of one variant, or of several."""

    requests: float = 0.0
    """Requests to all variants; refused ones, and those that met no variant, are included."""

    answered: float = 0.0
    samples: float = 0.0
    """Samples in the answered requests."""

    compute_s: float = 0.0
    """Time in the runtime, for the answered requests."""

    latency_s: float = 0.0
    """Sum of the latencies of the answers, waits included."""

    logs: float = 0.0
    log_squares: float = 0.0
    """Sums of the logarithms of the latencies per sample in ms, and of their squares."""


class Meter:
    """Counts requests. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0.0
        self._variants: dict[str, Served] = {}
        self._since: tuple[Served, set[str]] = (Served(), set())
        """The counts since the last look, and the variants that answered."""

    def count(self, answered: Answered) -> None:
        """Count a request.

        Args:
            answered: The record of the request; one for an unknown model does not count.
        """
        if answered.outcome is Outcome.UNKNOWN_MODEL:
            return
        with self._lock:
            self._since[0].requests += 1.0
            self._requests += 1.0
            if answered.outcome is not Outcome.OK:
                return
            samples = max(answered.samples, 1)
            log = math.log(max(answered.total_s * MS_PER_S / samples, SHORTEST_MS))
            self._since[1].add(answered.variant)
            for served in (self._since[0], self._variant(answered.variant)):
                served.answered += 1.0
                served.samples += samples
                served.compute_s += answered.compute_s
                served.latency_s += answered.total_s
                served.logs += log
                served.log_squares += log * log

    def take(self) -> tuple[Served, frozenset[str]]:
        """Return the counts since the last call and the variants that answered, and reset them."""
        with self._lock:
            (served, variants), self._since = self._since, (Served(), set())
        return served, frozenset(variants)

    def served(self, variant: str | None) -> Served:
        """Return the counts since the agent started.

        Args:
            variant: The variant whose answers are counted; the requests are those of all.
        """
        with self._lock:
            known = self._variants.get(variant or "", Served())
            return msgspec.structs.replace(known, requests=self._requests)

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
) -> Observed | None:
    """Return the observations of a period for a policy.

    Args:
        since: The result of `Meter.take`.
        variant: The variant that serves; None if there is none.
        alone_ms: Its latency alone on the device.
        held_bytes: Memory that its worker holds.
        period_s: Length of the period.
        cpu_share: Share of the processor that one computing request takes.

    Returns:
        The observations; None if nothing serves or no time has passed.
    """
    if variant is None or period_s <= 0.0:
        return None
    served, variants = since
    answered = served.answered
    return Observed(
        variant=variant,
        alone_ms=alone_ms,
        held_bytes=held_bytes,
        requests=served.requests,
        answered=answered,
        samples=served.samples,
        compute_s=served.compute_s,
        latency_ms=served.latency_s / answered * MS_PER_S if answered else None,
        log_variance=_log_variance(served),
        own_load=min(served.compute_s / period_s, 1.0) * cpu_share,
        cpu_share=cpu_share,
        mixed=bool(variants - {variant}),
    )


def _log_variance(served: Served) -> float | None:
    if served.answered < 2.0:  # noqa: PLR2004 - one answer has no spread
        return None
    squares = served.log_squares - served.logs**2 / served.answered
    return max(squares, 0.0) / (served.answered - 1.0)
