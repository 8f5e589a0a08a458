"""Adds the rows of the store to groups and computes their statistics.

Rules:
- Rows come in parts of any size; memory grows with the number of groups and of their buckets
  (`buckets_held`), not of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from telemetry.histogram import RANK_SLACK
from telemetry.server.measures import MAX_COUNT, MAX_TOTAL
from telemetry.server.merge import MergedHistograms
from telemetry.server.rows import Measure, MinuteColumns

Floats = npt.NDArray[np.float64]


class Aggregate:
    """Counts, sums, extremes and histograms of groups numbered from 0.

    Args:
        with_histograms: Whether quantiles will be asked for.
    """

    def __init__(self, *, with_histograms: bool) -> None:
        self.counts = np.zeros(0)
        self.totals = np.zeros(0)
        self.least = np.zeros(0)
        self.greatest = np.zeros(0)
        self._histograms = MergedHistograms() if with_histograms else None

    def add(self, rows: MinuteColumns, groups: Sequence[int], group_count: int) -> None:
        """Add rows to groups.

        Args:
            rows: One or more, from the store.
            groups: The group of each.
            group_count: How many groups there are by now.

        Raises:
            TelemetryStoreError: A stored histogram is not one of ours.
        """
        self._grow(group_count)
        at = np.array(groups, np.int64)
        counts, totals = np.array(rows.value_count, float), np.array(rows.total, float)
        self.counts += np.bincount(at, weights=counts, minlength=group_count)
        self.totals += np.bincount(at, weights=totals, minlength=group_count)
        np.minimum.at(self.least, at, np.array(rows.least, float))
        np.maximum.at(self.greatest, at, np.array(rows.greatest, float))
        if self._histograms is not None:
            filled = np.array([sketch is not None for sketch in rows.sketch], bool)
            self._histograms.add([s for s in rows.sketch if s is not None], at[filled])

    @property
    def buckets_held(self) -> int:
        """How many buckets of histograms there are in memory."""
        return 0 if self._histograms is None else self._histograms.buckets

    def quantiles(self, quantiles: Sequence[float]) -> Floats:
        """Return quantiles of every group, never outside its extremes.

        Args:
            quantiles: Each within 0 to 1.

        Returns:
            Shape (groups, len(quantiles)).
        """
        if self._histograms is None:
            return np.full((len(self.counts), len(quantiles)), np.nan)
        greatest = self.greatest[:, None]
        raw = self._histograms.quantiles(quantiles, len(self.counts))
        # The greatest value is exact, as in `ExponentialHistogram.quantile`.
        is_last = np.outer(self.counts, quantiles) - RANK_SLACK > self.counts[:, None] - 1
        return np.where(is_last, greatest, np.clip(raw, self.least[:, None], greatest))

    def measures(self) -> list[Measure]:
        """Return what each group has, as the store keeps it."""
        plain = [
            Measure(int(count), total, least, greatest)
            for count, total, least, greatest in zip(
                np.minimum(self.counts, MAX_COUNT).tolist(),
                np.clip(self.totals, -MAX_TOTAL, MAX_TOTAL).tolist(),
                self.least.tolist(),
                self.greatest.tolist(),
                strict=True,
            )
        ]
        if self._histograms is None:
            return plain
        sketches = self._histograms.encoded([measure[1:4] for measure in plain])
        return [
            measure
            if sketch is None
            else measure._replace(value_count=min(count, MAX_COUNT), sketch=sketch)
            for measure, (count, sketch) in zip(plain, sketches, strict=True)
        ]

    def buckets(self) -> tuple[Floats, Floats]:
        """Return what stands for each bucket in which there is anything, and how much is there.

        Returns:
            Shapes (buckets,), rising, and (groups, buckets).
        """
        if self._histograms is None:
            return np.zeros(0), np.zeros((len(self.counts), 0))
        return self._histograms.table(len(self.counts))

    def _grow(self, group_count: int) -> None:
        missing = group_count - len(self.counts)
        if missing > 0:
            self.counts = np.pad(self.counts, (0, missing))
            self.totals = np.pad(self.totals, (0, missing))
            self.least = np.pad(self.least, (0, missing), constant_values=np.inf)
            self.greatest = np.pad(self.greatest, (0, missing), constant_values=-np.inf)
