"""How several measures of one series become one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

import numpy as np

from telemetry.server.merge import MergedHistograms
from telemetry.server.rows import Measure

MAX_COUNT: Final = 2**62
"""Counts stop growing here: the database's integers have 64 bits."""

MAX_TOTAL: Final = 1e300
"""Totals stop growing here: the database's sums must not overflow."""

K = TypeVar("K")


def folded(parts: Mapping[K, Sequence[Measure]]) -> dict[K, Measure]:
    """Merge measures that belong together.

    Args:
        parts: One or more of the same kind for each key.

    Returns:
        One for each key, in the same order.

    Raises:
        TelemetryStoreError: A histogram is not one of ours.
    """
    whole = {key: found[0] if len(found) == 1 else _summed(found) for key, found in parts.items()}
    several = [
        key for key, found in parts.items() if len(found) > 1 and found[0].sketch is not None
    ]
    if several:
        sketches = [[part.sketch for part in parts[key] if part.sketch] for key in several]
        merged = MergedHistograms()
        groups = np.repeat(np.arange(len(several)), [len(each) for each in sketches])
        merged.add(list(chain.from_iterable(sketches)), groups)
        for key, (count, sketch) in zip(
            several, merged.encoded([whole[key][1:4] for key in several]), strict=True
        ):
            whole[key] = whole[key]._replace(value_count=min(count, MAX_COUNT), sketch=sketch)
    return whole


def _summed(parts: Sequence[Measure]) -> Measure:
    counts, totals, leasts, greatests, _ = zip(*parts, strict=True)
    total = min(max(sum(totals), -MAX_TOTAL), MAX_TOTAL)
    return Measure(min(sum(counts), MAX_COUNT), total, min(leasts), max(greatests))
