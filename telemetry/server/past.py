"""The telemetry of one moment, remembered, for many questions that follow each other in time.

A rule that is tested over a week asks some thousand times, each time of almost the same rows.
Here each row is read once.

Rules:
- The answers are those of the store: the same rows go through the same functions.
- What is remembered is bounded. Times of which there are too many rows are read each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Final, NamedTuple

from telemetry.server import presence
from telemetry.server.ingest import MAX_MINUTE
from telemetry.server.levels import Kept, Part
from telemetry.server.presence import Gap, Measured
from telemetry.server.rows import Grain, MinuteColumns, Reported, Series
from telemetry.server.snapshot import Snapshot
from telemetry.server.store import TelemetryStore

BLOCK_ROWS: Final = 360
"""How many times a block has: six hours of minutes, fifteen days of hours."""

MOST_IN_BLOCK: Final = 5000
"""A block with more rows is read each time: a histogram has about a kilobyte."""

MOST_ROWS: Final = 60_000
"""Rows that are remembered together."""

BY_MINUTE: Final = Grain(by_minute=True)
BY_MINUTE_AND_DEVICE: Final = Grain(by_minute=True, by_device=True)


class _Key(NamedTuple):
    """Which rows a block has."""

    level: str
    of_fleet: bool
    series: tuple[int, ...]
    devices: tuple[str, ...] | None
    grain: Grain | None
    """None for all rows with their histograms."""

    number: int


class _Block(NamedTuple):
    """Rows that were read."""

    starts: list[int]
    """The first minute of the time that each row is about, rising."""

    columns: MinuteColumns


class Past:
    """What there was at one moment.

    Args:
        store: The telemetry.
        moment: It at one moment.
    """

    def __init__(self, store: TelemetryStore, moment: Snapshot) -> None:
        self._store = store
        self._remembered = Remembered(moment)
        self._series: dict[str, list[Series]] = {}
        self._metrics: list[Reported] | None = None
        self._presence: dict[int, tuple[int, list[Measured], list[Gap]]] = {}
        """Since which minute it is known, and what, by how long a part of it is asked for."""

    @classmethod
    @contextmanager
    def of(cls, store: TelemetryStore) -> Iterator[Past]:
        """Hold what there is now.

        Args:
            store: The telemetry.

        Yields:
            What can be asked as the store can.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with store.snapshot() as moment:
            yield cls(store, moment)

    def series(self, metric: str) -> list[Series]:
        """Return the series of a metric."""
        if metric not in self._series:
            self._series[metric] = self._store.series(metric)
        return self._series[metric]

    def metrics(self) -> list[Reported]:
        """Return what there is, by name."""
        if self._metrics is None:
            self._metrics = self._store.metrics()
        return self._metrics

    def reporting(self, since_minute: int, until_minute: int) -> frozenset[str]:
        """Return the devices that measured anything in a time, if its minutes are kept.

        Args:
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
        """
        length = until_minute - since_minute
        if length not in self._presence or since_minute < self._presence[length][0]:
            found = self._store.silences(since_minute, MAX_MINUTE, longer_than=length)
            self._presence[length] = (since_minute, *found)
        return presence.within(*self._presence[length][1:], since_minute, until_minute)

    @contextmanager
    def snapshot(self) -> Iterator[Remembered]:
        """Read measurements as they were."""
        yield self._remembered


class Remembered:
    """Reads each row of a moment once, if there are not too many.

    Args:
        moment: What there is to read.
    """

    def __init__(self, moment: Snapshot) -> None:
        self._moment = moment
        self._blocks: OrderedDict[_Key, _Block | None] = OrderedDict()
        self._row_count = 0

    @property
    def now_s(self) -> float:
        """Wall time."""
        return self._moment.now_s

    def fleet_first(self) -> int:
        """Return the minute since which there are rows of the whole fleet."""
        return self._fleet_first

    def measured_since(self, first: int) -> int:
        """Return the first minute, from one on, of which devices can have measured something."""
        return first if self._fleet_first else max(self._measured_first, first)

    def kept(self) -> list[Kept]:
        """Return what there is of each level, from fine to coarse."""
        return self._kept

    def rows(
        self, part: Part, series: Sequence[int], devices: Sequence[str] | None = None
    ) -> Iterator[MinuteColumns]:
        """Return rows with their histograms."""
        return self._of_blocks(part, series, devices, None)

    def sums(
        self,
        part: Part,
        series: Sequence[int],
        devices: Sequence[str] | None = None,
        *,
        grain: Grain,
    ) -> Iterator[MinuteColumns]:
        """Return rows that were added up no more than is asked for; without histograms."""
        if grain.step or grain.by_minute:
            return self._moment.sums(part, series, devices, grain=grain)
        return self._of_blocks(part, series, devices, grain)

    @cached_property
    def _fleet_first(self) -> int:
        return self._moment.fleet_first()

    @cached_property
    def _measured_first(self) -> int:
        return self._moment.measured_since(0)

    @cached_property
    def _kept(self) -> list[Kept]:
        return self._moment.kept()

    def _of_blocks(
        self, part: Part, series: Sequence[int], devices: Sequence[str] | None, grain: Grain | None
    ) -> Iterator[MinuteColumns]:
        """Yield the rows of a part, from the blocks in which it lies."""
        length = BLOCK_ROWS * part.level.minutes
        named = None if devices is None else tuple(devices)
        for number in range(part.first // length, (part.end - 1) // length + 1):
            key = _Key(part.level.name, part.of_fleet, tuple(series), named, grain, number)
            block = self._block(key, part)
            first, end = max(part.first, number * length), min(part.end, (number + 1) * length)
            if block is None:
                yield from self._read(part._replace(first=first, end=end), key, grain)
                continue
            low, high = (bisect_left(block.starts, minute) for minute in (first, end))
            if low < high:
                yield MinuteColumns._make(column[low:high] for column in block.columns)

    def _block(self, key: _Key, part: Part) -> _Block | None:
        """Return a block; None if it has too many rows."""
        if key in self._blocks:
            self._blocks.move_to_end(key)
            return self._blocks[key]
        size = part.level.minutes
        length = BLOCK_ROWS * size
        whole = part._replace(first=key.number * length, end=(key.number + 1) * length)
        grain = key.grain
        if grain is not None:
            grain = BY_MINUTE_AND_DEVICE if grain.by_device else BY_MINUTE
        parts: list[MinuteColumns] = []
        count = 0
        with closing(self._read(whole, key, grain)) as found:
            for columns in found:
                parts.append(columns)
                count += len(columns.minute)
                if count > MOST_IN_BLOCK:
                    break
        block = None if count > MOST_IN_BLOCK else _sorted(parts, size)
        self._blocks[key] = block
        self._row_count += 0 if block is None else count
        while self._row_count > MOST_ROWS:
            _, oldest = self._blocks.popitem(last=False)
            self._row_count -= 0 if oldest is None else len(oldest.starts)
        return block

    def _read(
        self, part: Part, key: _Key, grain: Grain | None
    ) -> Generator[MinuteColumns, None, None]:
        if grain is None:
            yield from self._moment.rows(part, key.series, key.devices)
        else:
            yield from self._moment.sums(part, key.series, key.devices, grain=grain)


def _sorted(parts: Sequence[MinuteColumns], size: int) -> _Block:
    """Return rows by the time that they are about.

    Args:
        parts: The rows; their minute is the first one of which there are values.
        size: How many minutes a row is about.
    """
    columns = [
        tuple(value for part in parts for value in part[at])
        for at in range(len(MinuteColumns._fields))
    ]
    if not parts:
        return _Block([], MinuteColumns._make(columns))
    starts = [int(minute) // size * size for part in parts for minute in part.minute]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    return _Block(
        [starts[at] for at in order],
        MinuteColumns._make(tuple(column[at] for at in order) for column in columns),
    )
