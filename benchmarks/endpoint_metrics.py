"""What `[endpoint] metrics = true` costs, beside prometheus_client counting the same.

Both count the same answered request: one counter by outcome, four histograms and four counters
with the labels model, version and variant. prometheus_client's children are kept between requests,
as its documentation advises, so looking them up costs it nothing here. Both then write what they
have for a scrape. The memory is what the import adds to a process that has imported what the
supervisor has anyway. The rounds alternate.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from agent.serve.answered import Answered, Outcome
from agent.serve.frames import ModelIdentity
from agent.serve.http.exposition import exposed
from agent.serve.http.request_metrics import BOUNDS_REQUESTS, BOUNDS_S, RequestMetrics
from benchmarks.harness import Row, against, main
from benchmarks.programs import program

LABELS: Final = ("model", "version", "variant")
SERVED: Final = ("digits", "1.0", "int8")
ANSWERED: Final = Answered(
    asked_model="digits",
    variant="int8",
    release="digits:1.0",
    active=ModelIdentity(name="digits", version="1.0"),
    outcome=Outcome.OK,
    request_bytes=1000,
    answer_bytes=200,
    total_s=0.004,
    queue_s=0.0005,
    compute_s=0.003,
)


def measure(quick: bool) -> list[Row]:
    """Count and write with both, alternately.

    Args:
        quick: Fewer and shorter rounds.

    Returns:
        The rows.
    """
    rounds, round_s = (5, 0.1) if quick else (20, 0.5)
    ours, metrics = _ours()
    theirs, registry = _theirs()
    modules = ("agent.serve.http.metrics", "prometheus_client")
    counted: tuple[list[float], list[float]] = ([], [])
    written: tuple[list[float], list[float]] = ([], [])
    memory: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        counted[0].append(_each_us(ours, round_s))
        counted[1].append(_each_us(theirs, round_s))
        written[0].append(
            _each_us(lambda: exposed(metrics.families(), open_metrics=False), round_s)
        )
        written[1].append(_each_us(lambda: generate_latest(registry), round_s))
        for values, module in zip(memory, modules, strict=True):
            values.append(_imported_kib(module))
    peer = "prometheus_client"
    return [
        against("time to count a request", *counted, unit="us", peer=peer, at_most=1.0),
        against("time to write a scrape", *written, unit="us", peer=peer),
        against("memory of the import", *memory, unit="KiB", peer=peer, at_most=0.5),
    ]


def _ours() -> tuple[Callable[[], object], RequestMetrics]:
    metrics = RequestMetrics()
    return lambda: metrics.count(ANSWERED), metrics


def _theirs() -> tuple[Callable[[], object], CollectorRegistry]:
    registry = CollectorRegistry()
    requests = Counter("requests", "x", (*LABELS, "outcome", "status"), registry=registry)
    outcome = requests.labels(*SERVED, "ok", "200")
    times = [
        Histogram(name, "x", LABELS, buckets=BOUNDS_S, registry=registry).labels(*SERVED)
        for name in ("request_seconds", "request_queue_seconds", "request_compute_seconds")
    ]
    joined = Histogram("batch", "x", LABELS, buckets=BOUNDS_REQUESTS, registry=registry)
    batch = joined.labels(*SERVED)
    counters = [
        Counter(name, "x", LABELS, registry=registry).labels(*SERVED)
        for name in ("samples", "model_runs", "request_bytes", "answer_bytes")
    ]

    def count() -> None:
        outcome.inc()
        times[0].observe(ANSWERED.total_s)
        times[1].observe(ANSWERED.queue_s)
        times[2].observe(ANSWERED.compute_s)
        batch.observe(ANSWERED.joined)
        counters[0].inc(ANSWERED.samples)
        counters[1].inc(1.0 / ANSWERED.joined)
        counters[2].inc(ANSWERED.request_bytes)
        counters[3].inc(ANSWERED.answer_bytes)

    return count, registry


def _each_us(call: Callable[[], object], round_s: float) -> float:
    count, start_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - start_s) < round_s:
        for _ in range(50):
            call()
        count += 50
    return took_s / count * 1e6


def _imported_kib(module: str) -> float:
    command = [sys.executable, "-P", program("import_memory"), module]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    sys.exit(main("Metrics of the endpoint", measure))
