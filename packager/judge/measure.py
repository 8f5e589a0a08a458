"""Measures a variant's time and memory in this process, which must be fresh and do nothing else.

Rules:
- The process runs one sample at a time, after a warm-up, as a device does.
- The peak is `VmHWM` of this process. (`ru_maxrss` is inherited from the parent across exec and
  would report the parent's size.)
- There is a minimum of runs and of time, as in MLPerf Mobile's single stream; that asks for 1,024
  runs and 60 s, which the options allow.
- The figures are valid only for the machine that they name.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

from packager.errors import StepError
from runtime_adapters.protocol import Limits, Session, Tensors
from runtime_adapters.registry import open_session
from wire.clock import Clock
from wire.package.manifest import Performance, VariantInfo

WARM_UP_RUNS: Final = 20
MAX_DURATION_S: Final = 60.0
"""If the runs take longer, the measurement stops with fewer, unless the options give more time."""

MS_PER_S: Final = 1000.0


def measure(
    directory: Path,
    info: VariantInfo,
    inputs: Tensors,
    *,
    limits: Limits,
    min_runs: int,
    min_duration_s: float,
    machine: str,
    clock: Clock,
) -> Performance:
    """Load a variant and measure it.

    Args:
        directory: The variant's files.
        info: Its declaration.
        inputs: One sample.
        limits: What the session may use.
        min_runs: The least number of inferences.
        min_duration_s: The least duration of the measurement, in seconds.
        machine: Name of the machine that runs this.
        clock: The source of time.

    Returns:
        The figures.

    Raises:
        AdapterError: The runtime cannot load or run the variant.
        StepError: The process's peak memory cannot be read.
    """
    began_s = clock.monotonic_s()
    session = open_session(directory, info, limits)
    loaded_s = clock.monotonic_s()
    session.infer(inputs)
    first_s = clock.monotonic_s()
    latencies_ms = sorted(_latencies_ms(session, inputs, min_runs, min_duration_s, clock))
    return Performance(
        latency_p50_ms=statistics.median(latencies_ms),
        latency_p95_ms=_quantile(latencies_ms, 0.95),
        latency_iqr_ms=_quantile(latencies_ms, 0.75) - _quantile(latencies_ms, 0.25),
        load_ms=(loaded_s - began_s) * MS_PER_S,
        first_inference_ms=(first_s - loaded_s) * MS_PER_S,
        peak_memory_bytes=peak_memory_bytes(),
        runs=len(latencies_ms),
        threads=limits.threads,
        machine=machine,
    )


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the greatest resident size of this process.

    Args:
        status: The kernel's file.

    Returns:
        The size in bytes.

    Raises:
        StepError: The kernel does not report it.
    """
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise StepError("the kernel does not tell this process's peak memory")


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
