"""How much was served since the agent started: counted from the figures on their way to the spool.

Rules:
- Memory is bounded: beyond `MAX_VARIANTS` the variant that came first is forgotten.
- A request for which nothing served is a request too; only what was answered has a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from telemetry.histogram import ExponentialHistogram
from wire.messages import GaugePoint, HistogramPoint, Point

MAX_VARIANTS: Final = 64
MS_PER_S: Final = 1000.0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Counters that only grow until the agent starts anew."""

    requests: float = 0.0
    """Of all variants, refused ones and those that met no variant included."""

    answered: float = 0.0
    """By one variant."""

    compute_s: float = 0.0
    """That its worker computed for these."""

    latency_s: float = 0.0
    """That these took as a whole, the wait for the worker included."""


class Tally:
    """Adds up what the recorder hands out."""

    def __init__(self) -> None:
        self._requests = 0.0
        self._variants: dict[str, Served] = {}

    def count(self, points: Iterable[Point]) -> None:
        """Take growth into account.

        Args:
            points: As the recorder gives them, each once.
        """
        for point in points:
            if isinstance(point, GaugePoint):
                continue
            if isinstance(point, HistogramPoint):
                if point.metric == "inference_latency_ms":
                    latencies = ExponentialHistogram.from_bytes(point.blob)
                    self._grow(
                        point.attributes,
                        answered=float(latencies.count),
                        latency_s=latencies.total / MS_PER_S,
                    )
            elif point.metric == "inference_requests_total":
                self._requests += point.value
            elif point.metric == "worker_compute_seconds_total":
                self._grow(point.attributes, compute_s=point.value)

    def served(self, variant: str | None) -> Served:
        """Return the counters.

        Args:
            variant: Whose answers are counted.

        Returns:
            Requests of all, answers of that variant.
        """
        known = self._variants.get(variant or "", Served())
        return msgspec.structs.replace(known, requests=self._requests)

    def _grow(self, attributes: dict[str, str], **growth: float) -> None:
        name = attributes.get("variant", "")
        known = self._variants.setdefault(name, Served())
        if len(self._variants) > MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]
        grown = {key: getattr(known, key) + amount for key, amount in growth.items()}
        self._variants[name] = msgspec.structs.replace(known, **grown)
