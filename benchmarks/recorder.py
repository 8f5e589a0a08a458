"""What the telemetry of a request costs in the request's path.

The figures of one request, as the router records them: taken from the request's own thread, so they
are part of its latency. The peer is what OpenTelemetry's users would write with prometheus_client:
the same counters and histograms, by the same labels. The aim is two percent of a model that takes a
millisecond.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from agent.serve.answered import Answered, Outcome, record
from benchmarks.harness import Row, against, alone, main
from telemetry.device.recorder import Recorder
from tests.simulators.answers import answered
from wire.clock import SystemClock

REQUESTS: Final = 5000
AIM_US: Final = 20.0
LABELS: Final = ("release", "variant")
COUNTERS: Final = ("requests", "runs", "compute")
HISTOGRAMS: Final = ("latency", "queue", "runtime", "batch")


def measure(quick: bool) -> list[Row]:
    """Record requests, and let the peer record the same, alternately."""
    rounds = 3 if quick else 11
    ok = answered(queue_s=0.0004, total_s=0.0016, compute_s=0.001)
    refused = msgspec.structs.replace(
        answered(outcome=Outcome.REFUSED), code="agent.worker.busy", status=503
    )
    peer = _Peer()
    ours, theirs, refusals = [], [], []
    for _ in range(rounds):
        ours.append(_us(_recording(ok)))
        theirs.append(_us(lambda: peer.count(ok)))
        refusals.append(_us(_recording(refused)))
    return [
        against("an answered request", ours, theirs, unit="us", peer="prometheus_client"),
        alone("an answered request, aim", ours, unit="us", at_most=AIM_US),
        alone("a refused request", refusals, unit="us", at_most=AIM_US),
        alone("share of a request of 1 ms", [us / 10.0 for us in ours], unit="%", at_most=2.0),
    ]


class _Peer:
    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._counters = [Counter(name, name, LABELS, registry=registry) for name in COUNTERS]
        self._histograms = [Histogram(name, name, LABELS, registry=registry) for name in HISTOGRAMS]

    def count(self, told: Answered) -> None:
        labels = (told.release, told.variant)
        for counter, amount in zip(
            self._counters, (1.0, 1.0 / told.joined, told.compute_s), strict=True
        ):
            counter.labels(*labels).inc(amount)
        values = (told.total_s, told.queue_s, told.compute_s, told.joined)
        for histogram, value in zip(self._histograms, values, strict=True):
            histogram.labels(*labels).observe(value)


def _recording(told: Answered) -> Callable[[], None]:
    recorder = Recorder(SystemClock())
    return lambda: record(recorder, told)


def _us(work: Callable[[], None]) -> float:
    """Return the processor time of one call, in microseconds: the mean of many."""
    work()
    began_s = time.thread_time()
    for _ in range(REQUESTS):
        work()
    return (time.thread_time() - began_s) / REQUESTS * 1e6


if __name__ == "__main__":
    sys.exit(main("Telemetry of a request", measure))
