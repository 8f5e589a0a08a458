"""Sets of variants for the traces of the judge, drawn at random.

A set has three to six variants of one model, in a form that is near (each 1.12 to 1.45 times as
slow as the next, and up to 1.5 % of the quality apart) or far (1.6 to 3.2 times, up to 11 %). The
first figures are what numerical formats of one network differ by, the second what sizes of one
architecture differ by.

Rules:
- Pure: the same generator gives the same set.
- Faster mostly means less accurate and smaller, but not always: some sets have a variant that
  another one beats in everything, and in some the smallest is not the fastest (weights in int4 that
  are unpacked at each run, a fast kernel with a large workspace).

Source:
    Near: float32, float16, int8 and mixed forms in docs/benchmarks.md. Far: YOLOv5 n to x and
    EfficientNet-Lite 0 to 4, as their READMEs have them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Literal

from agent.select.decisions import Candidate

Spacing = Literal["near", "far"]
SLOWER: Final = {"near": (1.12, 1.45), "far": (1.6, 3.2)}
"""Latency over that of the next faster variant."""

LOSES: Final = {"near": (0.0005, 0.015), "far": (0.01, 0.11)}
"""Retention below that of the next slower variant."""

DOMINATED_SHARE: Final = 0.15
"""Share of the sets with a variant that is slower than a more accurate one."""

ODD_MEMORY_SHARE: Final = 0.3
"""Share of the sets whose memory does not follow the latency."""

SHARED_BYTES: Final = (30e6, 90e6)
"""What a worker needs besides the model."""

MS_PER_S: Final = 1000.0


def draw_variants(
    chance: random.Random, spacing: Spacing, *, slowest_ms: float, largest_bytes: float
) -> tuple[Candidate, ...]:
    """Return a set of variants, the most accurate first.

    Args:
        chance: Where the numbers come from.
        spacing: How far the variants are apart.
        slowest_ms: Latency of the most accurate one.
        largest_bytes: Memory of the most accurate one.
    """
    count = chance.randint(3, 6)
    latencies_ms, retentions = [slowest_ms], [1.0]
    for _ in range(count - 1):
        latencies_ms.append(latencies_ms[-1] / chance.uniform(*SLOWER[spacing]))
        retentions.append(retentions[-1] - chance.uniform(*LOSES[spacing]))
    if chance.random() < DOMINATED_SHARE:
        slow = chance.randrange(1, count)
        latencies_ms[slow] = latencies_ms[slow - 1] * chance.uniform(1.02, 1.3)
    sizes = _sizes(chance, latencies_ms, largest_bytes)
    return tuple(
        Candidate(
            name=f"v{number}",
            latency_p50_ms=latency_ms,
            peak_memory_bytes=round(size),
            accuracy=retention,
            # A model loads at the speed of its storage, and is prepared in some hundred runs.
            load_ms=size / chance.uniform(60e3, 400e3) + latency_ms * chance.uniform(0.5, 8.0),
        )
        for number, (latency_ms, retention, size) in enumerate(
            zip(latencies_ms, retentions, sizes, strict=True)
        )
    )


def _sizes(
    chance: random.Random, latencies_ms: Sequence[float], largest_bytes: float
) -> list[float]:
    shared = chance.uniform(*SHARED_BYTES)
    exponent = chance.uniform(0.6, 1.3)
    own = max(largest_bytes - shared, shared)
    sizes = [
        shared + own * (ms / latencies_ms[0]) ** exponent * chance.uniform(0.9, 1.1)
        for ms in latencies_ms
    ]
    if chance.random() < ODD_MEMORY_SHARE:
        # The fastest needs more than the one before it, so another one is the smallest.
        sizes[-1] = sizes[-2] * chance.uniform(1.1, 2.0)
    return sizes
