"""Measures a variant's time and memory in this process, which must be fresh and do nothing else.

Rules:
- The process runs one sample at a time, after a warm-up, as a device does.
- Then the variant and the unchanged model run in turn (`alternation`), because other work on the
  machine must not decide which variant is the faster one. The unchanged model is loaded last, so
  that it is in no other figure.
- The peak is `VmHWM` of this process. (`ru_maxrss` is inherited from the parent across exec and
  would report the parent's size.)
- There is a minimum of runs and of time, as in MLPerf Mobile's single stream; that asks for 1,024
  runs and 60 s, which the options allow.
- The figures are valid only for the machine that they name.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from runtime_adapters.alternation import alternate
from runtime_adapters.energy import EnergyCounters, added_j
from runtime_adapters.errors import AdapterError
from runtime_adapters.protocol import Limits, Session, Tensors
from runtime_adapters.registry import open_session
from wire.clock import Clock
from wire.package.performance import Performance
from wire.package.variant import VariantInfo

WARM_UP_RUNS: Final = 20
MAX_DURATION_S: Final = 60.0
"""If the runs take longer, the measurement stops with fewer, unless the options give more time."""

MOST_ALTERNATION: Final = 10.0
"""How many times the duration of a measurement the variant and the unchanged model run in turn, if
their ratio does not become sure before."""

MS_PER_S: Final = 1000.0
_IDLE_COLUMNS: Final = (3, 4)
"""`idle` and `iowait` of the line `cpu` in /proc/stat."""

_GUEST_COLUMN: Final = 8
"""From here on /proc/stat repeats time that is in other columns already."""


class Opened(NamedTuple):
    """A model that can be loaded."""

    directory: Path
    info: VariantInfo
    inputs: Tensors
    """One sample."""


def measure(
    variant: Opened,
    reference: Opened | None,
    *,
    limits: Limits,
    min_runs: int,
    min_duration_s: float,
    machine: str,
    clock: Clock,
    counters: EnergyCounters | None = None,
) -> Performance:
    """Load a variant and measure it.

    Args:
        variant: The variant.
        reference: The unchanged model; None to measure the variant alone.
        limits: What each session may use.
        min_runs: The least number of inferences.
        min_duration_s: The least duration of the measurement, in seconds.
        machine: Name of the machine that runs this.
        clock: The source of time.
        counters: Of energy; None to measure none.

    Returns:
        The figures.

    Raises:
        AdapterError: A runtime cannot load or run the variant or the unchanged model, or the
            process's peak memory cannot be read.
    """
    background = _Background(clock)
    began_s = clock.monotonic_s()
    session = open_session(variant.directory, variant.info, limits)
    loaded_s = clock.monotonic_s()
    session.infer(variant.inputs)
    first_s = clock.monotonic_s()
    latencies_ms = sorted(_latencies_ms(session, variant.inputs, min_runs, min_duration_s, clock))
    peak_bytes = peak_memory_bytes()
    energy_j = None
    if counters is not None:
        energy_j = added_j(lambda: session.infer(variant.inputs), counters, clock)
    relative = None
    if reference is not None:
        unchanged, asked = open_session(reference.directory, reference.info, limits), reference
        relative = alternate(
            lambda: session.infer(variant.inputs),
            lambda: unchanged.infer(asked.inputs),
            reference=reference.info.runtime,
            most_s=min(MOST_ALTERNATION * min_duration_s, max(MAX_DURATION_S, min_duration_s)),
            clock=clock,
        )
    busy = background.cpus()
    return Performance(
        latency_p50_ms=statistics.median(latencies_ms),
        latency_p95_ms=_quantile(latencies_ms, 0.95),
        latency_iqr_ms=_quantile(latencies_ms, 0.75) - _quantile(latencies_ms, 0.25),
        load_ms=(loaded_s - began_s) * MS_PER_S,
        first_inference_ms=(first_s - loaded_s) * MS_PER_S,
        peak_memory_bytes=peak_bytes,
        runs=len(latencies_ms),
        threads=limits.threads,
        machine=machine,
        relative=msgspec.UNSET if relative is None else relative,
        background_cpus=msgspec.UNSET if busy is None else busy,
        energy_j=msgspec.UNSET if energy_j is None else energy_j,
    )


class _Background:
    """How busy the processors are with anything but this process.

    Args:
        clock: The source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._busy_s, self._own_s = busy_s(), time.process_time()

    def cpus(self) -> float | None:
        """Return how many processors others kept busy since the start; None if nothing tells."""
        taken_s = self._clock.monotonic_s() - self._began_s
        now_s, own_s = busy_s(), time.process_time()
        if now_s is None or self._busy_s is None or taken_s <= 0.0:
            return None
        others_s = (now_s - self._busy_s) - (own_s - self._own_s)
        return round(max(others_s / taken_s, 0.0), 2)


def busy_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Return how long the machine's processors were busy since it started, all together.

    Args:
        stat: The kernel's file.

    Returns:
        The time in seconds, with what a hypervisor took away; None if the kernel does not tell.

    Source:
        Linux, Documentation/filesystems/proc.rst, 1.7: the columns of /proc/stat.
    """
    try:
        words = stat.read_text(encoding="ascii", errors="replace").split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:]][:_GUEST_COLUMN]
    except (OSError, ValueError):
        return None
    busy = sum(count for column, count in enumerate(ticks) if column not in _IDLE_COLUMNS)
    return busy / os.sysconf("SC_CLK_TCK") if ticks else None


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the greatest resident size of this process.

    Args:
        status: The kernel's file.

    Returns:
        The size in bytes.

    Raises:
        AdapterError: The kernel does not report it.
    """
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise AdapterError("the kernel does not tell this process's peak memory")


def _latencies_ms(
    session: Session, inputs: Tensors, min_runs: int, min_duration_s: float, clock: Clock
) -> list[float]:
    deadline_s = clock.monotonic_s() + max(MAX_DURATION_S, 2 * min_duration_s)
    for _ in range(WARM_UP_RUNS):
        session.infer(inputs)
        if clock.monotonic_s() > deadline_s:
            break
    latencies_ms: list[float] = []
    start_s = clock.monotonic_s()
    while True:
        before_s = clock.monotonic_s()
        session.infer(inputs)
        after_s = clock.monotonic_s()
        latencies_ms.append((after_s - before_s) * MS_PER_S)
        enough = len(latencies_ms) >= min_runs and after_s - start_s >= min_duration_s
        if enough or after_s > deadline_s:
            return latencies_ms


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]
