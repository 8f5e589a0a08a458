"""What one inference takes on this machine when nothing else disturbs it.

Rules:
- Samples are run one by one, in turn, for a fraction of a second; a slow model runs once.
- The lower quartile counts: what disturbs a run adds time and never takes any, and the first runs
  find cold caches and a processor that is still slow.
"""

from __future__ import annotations

from typing import Final

from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Session, Tensors
from wire.clock import Clock

MEASURE_S: Final = 0.3
"""A noisy neighbour's turns are some milliseconds long, and a governor takes tens to speed up."""

MOST_RUNS: Final = 400
MS_PER_S: Final = 1000.0


def latency_alone_ms(session: Session, inputs: Tensors, clock: Clock) -> float:
    """Measure what one sample takes.

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
    taken_s: list[float] = []
    while len(taken_s) < MOST_RUNS and sum(taken_s) < MEASURE_S:
        place = len(taken_s) % samples
        sample = {name: tensor[place : place + 1] for name, tensor in inputs.items()}
        began_s = clock.monotonic_s()
        session.infer(sample)
        taken_s.append(clock.monotonic_s() - began_s)
    return sorted(taken_s)[len(taken_s) // 4] * MS_PER_S
