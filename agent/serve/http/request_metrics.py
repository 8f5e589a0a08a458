"""Counts requests for Prometheus: by model, version and variant, from the record of each request.

The statistics of Triton's extension (`agent.serve.http.statistics`) begin anew with each version;
counters that are scraped must not. So both are counted, each from the same record, and this only on
a device that is scraped.

Rules:
- The name that a client asks for is no label unless the device has that model: clients must not
  make new series. A request that no variant could answer is one of its model, with no version.
- Memory is bounded: of more than `MAX_VARIANTS` variants the one goes that answered longest ago.
- Times are those of requests that were answered with 200.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from agent.serve.answered import Answered, Outcome
from agent.serve.http.exposition import Family, Kind, Sample, histogram

MAX_VARIANTS: Final = 64
"""Some 6 KB each in memory, and as much in each answer."""

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
)  # fmt: skip
"""Tenths of a millisecond for small models on a good board, to the usual limit of an answer."""

BOUNDS_REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
NONE: Final = "none"


class _Served(NamedTuple):
    """What answered."""

    model: str
    version: str
    variant: str


class _Histogram:
    """Counts by bucket, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Yield the lines of the metric."""
        return histogram(self.bounds, self.counts, self.total, labels)


class _Figures:
    """The figures of one variant."""

    __slots__ = (
        "answer_bytes",
        "compute",
        "joined",
        "outcomes",
        "queue",
        "request_bytes",
        "runs",
        "samples",
        "total",
        "used",
    )

    def __init__(self) -> None:
        self.outcomes: dict[tuple[Outcome, int], int] = {}
        self.total = _Histogram(BOUNDS_S)
        self.queue = _Histogram(BOUNDS_S)
        self.compute = _Histogram(BOUNDS_S)
        self.joined = _Histogram(BOUNDS_REQUESTS)
        self.samples = self.request_bytes = self.answer_bytes = 0
        self.runs = 0.0
        self.used = 0
        """Number of the last request."""


Lines: TypeAlias = Callable[[_Figures, dict[str, str]], Iterator[Sample]]
"""Returns the lines of one variant."""


class RequestMetrics:
    """Counts requests. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[_Served, _Figures] = {}
        self._number = 0

    def count(self, answered: Answered) -> None:
        """Count a request; a listener of the router.

        Args:
            answered: The record of the request.
        """
        outcome = answered.outcome
        if outcome is Outcome.UNKNOWN_MODEL:
            served = _Served(NONE, NONE, NONE)
        else:
            model, _, version = answered.release.rpartition(":")
            served = _Served(model or answered.asked_model, version, answered.variant)
        key = (outcome, answered.status)
        with self._lock:
            figures = self._figures.get(served) or self._new(served)
            self._number += 1
            figures.used = self._number
            figures.outcomes[key] = figures.outcomes.get(key, 0) + 1
            figures.request_bytes += answered.request_bytes
            figures.answer_bytes += answered.answer_bytes
            if outcome is Outcome.OK:
                figures.total.add(answered.total_s)
                figures.queue.add(answered.queue_s)
                figures.compute.add(answered.compute_s)
                figures.joined.add(answered.joined)
                figures.samples += answered.samples
                figures.runs += 1.0 / answered.joined

    def families(self) -> tuple[Family, ...]:
        """Return what was counted."""
        with self._lock:  # some tenths of a millisecond, for which a request may wait
            return tuple(
                Family(f"edgefleet_{name}", kind, about, tuple(self._samples(lines)))
                for name, kind, about, lines in METRICS
            )

    def _new(self, served: _Served) -> _Figures:
        if len(self._figures) >= MAX_VARIANTS:
            del self._figures[min(self._figures, key=lambda one: self._figures[one].used)]
        return self._figures.setdefault(served, _Figures())

    def _samples(self, lines: Lines) -> Iterator[Sample]:
        for served, figures in self._figures.items():
            yield from lines(figures, served._asdict())


def _outcomes(figures: _Figures, labels: dict[str, str]) -> Iterator[Sample]:
    for (outcome, status), count in figures.outcomes.items():
        told = {"outcome": outcome.value.replace(" ", "_"), "status": str(status)}
        yield Sample(count, labels | told)


def _histogram(name: str) -> Lines:
    return lambda figures, labels: getattr(figures, name).lines(labels)


def _counter(name: str) -> Lines:
    return lambda figures, labels: iter([Sample(getattr(figures, name), labels)])


METRICS: Final[tuple[tuple[str, Kind, str, Lines], ...]] = (
    ("requests", "counter", "Requests for inference, by how they ended.", _outcomes),
    (
        "request_seconds",
        "histogram",
        "Time from the arrival of a request until its answer was ready.",
        _histogram("total"),
    ),
    (
        "request_queue_seconds",
        "histogram",
        "The part of it before the request's turn with the worker.",
        _histogram("queue"),
    ),
    (
        "request_compute_seconds",
        "histogram",
        "Time in the runtime; a joined request counts its share of the run.",
        _histogram("compute"),
    ),
    (
        "batch_requests",
        "histogram",
        "Of each request: how many the same run of the model answered.",
        _histogram("joined"),
    ),
    ("samples", "counter", "Samples in answered requests.", _counter("samples")),
    ("model_runs", "counter", "Runs of the model; joined requests share one.", _counter("runs")),
    (
        "request_bytes",
        "counter",
        "Bytes of the bodies of requests, decompressed.",
        _counter("request_bytes"),
    ),
    (
        "answer_bytes",
        "counter",
        "Bytes of the bodies of answers, before compression.",
        _counter("answer_bytes"),
    ),
)
"""Name without `edgefleet_`, kind, one line for people, and what to tell of a variant."""
