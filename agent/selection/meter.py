"""What came of serving since the last decision: counted from the figures of each request.

Rules:
- A meter stands between serving and the recorder and hands everything on.
- It is read and set back in one step: nothing is counted twice or lost between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.selection.estimates import Observed

MS_PER_S: Final = 1000.0


class Measures(Protocol):
    """Where figures and events go."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        ...

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Let a counter grow."""
        ...

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        """Keep something that happened once."""
        ...


class Counts(msgspec.Struct):
    """Sums since they were last read."""

    requests: float = 0.0
    answered: float = 0.0
    compute_s: float = 0.0
    latency_s: float = 0.0
    variants: frozenset[str] = frozenset()
    """That answered."""


class Meter:
    """Counts what serving tells of its requests.

    Args:
        measures: Hears everything too.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._lock = threading.Lock()
        self._counts = Counts()

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        self._measures.observe(metric, value, attributes)
        if metric == "inference_latency_ms":
            with self._lock:
                self._counts.answered += 1.0
                self._counts.latency_s += value / MS_PER_S
                self._counts.variants |= {attributes.get("variant", "")}

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Let a counter grow."""
        self._measures.add(metric, amount, attributes)
        with self._lock:
            if metric == "inference_requests_total":
                self._counts.requests += amount
            elif metric == "worker_compute_seconds_total":
                self._counts.compute_s += amount

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        """Keep something that happened once."""
        self._measures.event(kind, reason, data)

    def take(self) -> Counts:
        """Return what was counted since the last time, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return counts


def observed(
    counts: Counts,
    variant: str | None,
    *,
    declared_ms: float | None,
    held_bytes: int,
    period_s: float,
    cpu_share: float,
) -> Observed | None:
    """Return what came of a period, as a policy takes it.

    Args:
        counts: Of the period.
        variant: What serves; None for nothing.
        declared_ms: Its latency.
        held_bytes: Memory that its worker holds.
        period_s: Length of the period.
        cpu_share: Share of the processor that one computing request takes.

    Returns:
        What came of it; None where nothing serves or no time has passed.
    """
    if variant is None or period_s <= 0.0:
        return None
    answered = counts.answered
    return Observed(
        declared_ms=declared_ms,
        held_bytes=held_bytes,
        requests=counts.requests,
        answered=answered,
        compute_s=counts.compute_s,
        latency_ms=counts.latency_s / answered * MS_PER_S if answered else None,
        own_load=min(counts.compute_s / period_s, 1.0) * cpu_share,
        cpu_share=cpu_share,
        mixed=bool(counts.variants - {variant}),
    )
