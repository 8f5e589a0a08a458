"""Measures how long one inference takes on this machine while nothing else runs.

Rules:
- The measurement runs the samples one by one, in turn, for a fraction of a second. A slow model
  runs once.
- The result is the lower quartile: other processes only make a run longer, and in the first runs
  the caches are cold and the processor is not yet at its full frequency.
"""

from __future__ import annotations

from typing import Final

from runtime_adapters.batches import one_sample, ranks_of
from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Session, Tensors
from wire.clock import Clock

MEASURE_S: Final = 0.3
"""Another process runs for some milliseconds at a time, and a frequency governor takes tens of them
to raise the frequency."""

MAX_RUNS: Final = 400
MS_PER_S: Final = 1000.0


def measure_latency_ms(session: Session, inputs: Tensors, clock: Clock) -> float:
    """Measure how long one sample takes.

    Args:
        session: The loaded variant, warmed up.
        inputs: Arrays by input name; the first axis counts the samples.
        clock: For the durations.

    Returns:
        The lower quartile over the runs, in milliseconds.

    Raises:
        InputError: There is no sample.
        FleetError: The variant does not answer one.
    """
    samples = min((len(tensor) for tensor in inputs.values()), default=0)
    if samples == 0:
        raise InputError("no sample to measure with")
    ranks = ranks_of(session.describe().inputs)
    runs_s: list[float] = []
    while len(runs_s) < MAX_RUNS and sum(runs_s) < MEASURE_S:
        row = len(runs_s) % samples
        sample = one_sample(inputs, row, ranks)
        began_s = clock.monotonic_s()
        session.infer(sample)
        runs_s.append(clock.monotonic_s() - began_s)
    return sorted(runs_s)[len(runs_s) // 4] * MS_PER_S
