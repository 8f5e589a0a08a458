"""What a fleet measures in a minute: batches as devices send them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from telemetry.histogram import ExponentialHistogram
from wire.telemetry import GaugePoint, HistogramPoint, Point, SumPoint, TelemetryBatch

VARIANTS: Final = ("fp32", "fp16", "int8")
LATENCY: Final = "inference_latency_ms"
START: Final = 29_000_160
"""A minute with which a day begins."""

POOL: Final = 3000
VALUES: Final = 60
"""Requests of a device in a minute."""


def histograms(seed: int) -> list[bytes]:
    """Return minutes of latencies, of devices that differ."""
    chance = random.Random(seed)
    made = []
    for _ in range(POOL):
        histogram = ExponentialHistogram()
        centre, spread = chance.uniform(2, 4), chance.uniform(0.1, 0.5)
        for _ in range(VALUES):
            histogram.add(chance.lognormvariate(centre, spread))
        made.append(histogram.to_bytes())
    return made


def minute_batches(
    minute: int, devices: int, pool: Sequence[bytes], chance: random.Random, further: int
) -> list[TelemetryBatch]:
    """Return what all devices send of one minute: a histogram each, and further points."""
    batches = []
    for number in range(devices):
        named = {"release": "digits:1.0.0", "variant": VARIANTS[number % len(VARIANTS)]}
        points: list[Point] = [
            HistogramPoint(
                metric=LATENCY, minute=minute, attributes=named, blob=chance.choice(pool)
            )
        ]
        for at in range(further):
            if at % 2:
                points.append(SumPoint(metric=f"n{at}_total", minute=minute, attributes=named,
                                       value=60.0))  # fmt: skip
            else:
                points.append(GaugePoint(metric=f"g{at}", minute=minute, attributes={}, count=60,
                                         total=3000.0, least=40.0, greatest=60.0))  # fmt: skip
        batches.append(
            TelemetryBatch(
                device=f"device-{number:05d}", boot_id="boot", sequence=minute - START,
                points=tuple(points),
            )
        )  # fmt: skip
    return batches
