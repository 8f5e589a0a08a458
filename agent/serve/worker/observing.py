"""Counts how requests and answers are distributed, by the bins of the evaluation.

Runs in the worker process, after the answer has been sent.

Rules:
- It takes at most `MOST_SHARE` of the time, whatever the tensors are: after a look it waits so much
  longer than the look took. It looks at no more than `MOST_PER_S` requests a second.
- It keeps counts, never values.
- What it cannot place is left out; the request has its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from agent.serve.frames import Seen
from runtime_adapters.distributions import bins, is_known, rows_of
from runtime_adapters.protocol import Tensors
from wire.clock import Clock
from wire.package.distribution import Distribution
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

MOST_SHARE: Final = 0.005
MOST_PER_S: Final = 5.0
MOST_ROWS: Final = 16
"""Samples of a request that are counted: its first ones."""

MOST_BINS: Final = 64
"""Of all distributions that are counted: each is a series of telemetry."""

MOST_NAME: Final = 100
"""Characters of a tensor's name; telemetry takes no longer ones."""


class Observer:
    """Counts for one variant. Not for several threads.

    Args:
        info: What the variant declares.
        clock: For measured times.
    """

    def __init__(self, info: VariantInfo, clock: Clock) -> None:
        self._clock = clock
        self._specs = {
            ("input", spec.name): spec for spec in info.inputs if spec.datatype != "BYTES"
        } | {("output", spec.name): spec for spec in info.outputs if spec.datatype != "BYTES"}
        self._counted = tuple(self._chosen(info))
        self._next_s = 0.0
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def look(self, inputs: Tensors, outputs: Tensors) -> None:
        """Count a request and its answer, if it is time to.

        Args:
            inputs: The request.
            outputs: The answer of the model.
        """
        if not self._counted:
            return
        start_s = self._clock.monotonic_s()
        if start_s < self._next_s:
            return
        try:
            for distribution, spec in self._counted:
                tensors = inputs if distribution.of == "input" else outputs
                rows = rows_of(tensors[spec.name], spec)[:MOST_ROWS]
                name = f"{distribution.of}.{spec.name}"
                for place in bins(distribution, rows).tolist():
                    self._counts[name, distribution.measure, place] += 1
        except (KeyError, ValueError, TypeError, MemoryError):
            self._counted = ()  # the tensors are not as declared: what is counted would be wrong
        end_s = self._clock.monotonic_s()
        self._next_s = start_s + max((end_s - start_s) / MOST_SHARE, 1 / MOST_PER_S)

    def take(self) -> tuple[Seen, ...]:
        """Return what has been counted since the last time."""
        if not self._counts:
            return ()
        found = tuple(
            Seen(tensor=tensor, measure=measure, bin=place, samples=count)
            for (tensor, measure, place), count in self._counts.items()
        )
        self._counts.clear()
        return found

    def _chosen(self, info: VariantInfo) -> Iterator[tuple[Distribution, TensorSpec]]:
        left = MOST_BINS
        for each in info.distributions or ():
            spec = self._specs.get((each.of, each.tensor))
            if spec is None or not is_known(each) or len(each.tensor) > MOST_NAME:
                continue
            left -= len(each.counts)
            if left < 0:
                return
            yield each, spec
