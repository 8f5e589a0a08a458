"""What an earlier Parquet file holds and its new copy does not: it is kept.

The controller deletes what is old, so a copy of a day may lack what an earlier one has; and it may
have what that one lacks. Each row has a key, so both can be put together.

Rules:
- No row of the earlier file is lost, and none is there twice. Of a row that both have, that of the
  most values stays: a row only grows.
- Rows come in windows of time, all of one before those of the next, and only the keys of one window
  are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from controller.cli.errors import ArgumentError
from controller.client.errors import AnswerError
from telemetry.server.export.lines import EventsLine, MetricLine, RowsLine
from wire.codec import to_json
from wire.files import open_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

NAMED: Final = ("model", "release", "variant")
US_PER_S: Final = 1_000_000
US_PER_MINUTE: Final = 60 * US_PER_S
ROWS_AT_ONCE: Final = 2000
_MEASURED: Final = ("time", "device", *NAMED, "attributes", "kind", "count")
_HAPPENED: Final = ("time", "device", "kind", "reason", "data")


class Row(NamedTuple):
    """What tells a row from all others."""

    time_us: int
    key: Hashable
    values: int
    """How many it is made of; of events, nothing can be added to one."""


class Keys:
    """Tells the rows of a metric, or of events, apart.

    Args:
        metric: The first line of the controller's answer; None for events.
    """

    def __init__(self, metric: MetricLine | None) -> None:
        self.columns = _HAPPENED if metric is None else _MEASURED
        self.are_unique = metric is not None
        """Whether there is at most one row of a key; two events may be alike."""

        self._same: dict[Hashable, Hashable] = {}
        """Equal parts of keys are one object: there are few."""

        series = {} if metric is None else metric.series
        self._series = {
            int(number): self._one(_series_key({**attributes}, metric.kind if metric else ""))
            for number, attributes in series.items()
        }

    def of_answer(self, block: RowsLine | EventsLine) -> Iterator[Row]:
        """Yield the rows of a line of the controller's answer."""
        if isinstance(block, RowsLine):
            found = zip(block.series, block.minute, block.device, block.count, strict=True)
            for number, minute, device, count in found:
                key = (self._series[number], minute, self._one(device))
                yield Row(minute * US_PER_MINUTE, key, count)
            return
        columns = event_columns(block)
        for values in zip(*(columns[name] for name in _HAPPENED), strict=True):
            yield Row(values[0], _digest(values), 1)

    def of_file(self, columns: Mapping[str, list[Any]]) -> Iterator[Row]:
        """Yield the rows of a part of a file, by the names of its columns; the time in us."""
        found = zip(*(columns[name] for name in self.columns), strict=True)
        if not self.are_unique:
            for values in found:
                yield Row(values[0], _digest(values), 1)
            return
        for time_us, device, *named, attributes, kind, count in found:
            all_named = dict(attributes or ())
            all_named |= {
                name: value for name, value in zip(NAMED, named, strict=True) if value is not None
            }
            series = self._one(_series_key(all_named, kind))
            yield Row(time_us, (series, time_us // US_PER_MINUTE, self._one(device)), count)

    def _one(self, part: Hashable) -> Hashable:
        return self._same.setdefault(part, part)


class EarlierFile:
    """A file whose place a new one is to take.

    Args:
        path: The file.
        schema: Of the new one.
        keys: Tells rows apart.
        window_us: How long a window is.

    Raises:
        OSError: It is missing, or cannot be read.
        ArgumentError: It is something else.
    """

    def __init__(self, path: Path, schema: pa.Schema, keys: Keys, window_us: int) -> None:
        import pyarrow as pa

        self._path = path
        self._schema = schema
        self._keys = keys
        self._window_us = window_us
        self._stream = open_file(path)
        try:
            self._file = self._opened()
            self._groups = list(self._windows_of_groups())
        except (OSError, pa.ArrowException) as exc:
            self.close()
            raise self._other() from exc
        except ArgumentError:
            self.close()
            raise
        self._waiting = sorted({window for _, windows in self._groups for window in windows})
        """The windows in which it may have rows, those that have not been reached."""

        self._window = -1
        self._left: dict[Hashable, int] = {}
        """Of the rows of this window that are not in the answer: how many values each has; of
        events, how many are alike."""

        self.kept = 0
        """How many rows were kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def reach(self, time_us: int) -> Iterator[pa.Table]:
        """Go on to the window of a row of the answer.

        Args:
            time_us: When the row is.

        Yields:
            The rows of windows before that are kept.

        Raises:
            AnswerError: The window has passed.
            ArgumentError: The file is damaged.
        """
        window = time_us // self._window_us
        if window == self._window:
            return
        if window < self._window:
            raise AnswerError(
                "the controller answered in another order", remedy="use the `fleet` of its version"
            )
        yield from self._rest_before(window)
        self._window = window
        if self._waiting and self._waiting[0] == window:
            self._waiting.pop(0)
            self._read_keys()

    def gives_way(self, row: Row) -> bool:
        """Tell whether a row of the answer is taken; the earlier one, if there is any, goes.

        Args:
            row: In the window that was reached.

        Returns:
            False if the earlier row has more values: it stays.
        """
        earlier = self._left.get(row.key)
        if earlier is None:
            return True
        if self._keys.are_unique and earlier > row.values:
            return False
        self._take(row.key)
        return True

    def rest(self) -> Iterator[pa.Table]:
        """Yield all that is kept and was not reached.

        Raises:
            ArgumentError: The file is damaged.
        """
        yield from self._rest_before(None)

    def _rest_before(self, end: int | None) -> Iterator[pa.Table]:
        yield from self._kept_of_window()
        while self._waiting and (end is None or self._waiting[0] < end):
            self._window = self._waiting.pop(0)
            self._read_keys()
            yield from self._kept_of_window()

    def _read_keys(self) -> None:
        for batch in self._batches(self._keys.columns):
            for row in self._rows(batch):
                if row.time_us // self._window_us != self._window:
                    continue
                if self._keys.are_unique:
                    self._left[row.key] = max(row.values, self._left.get(row.key, 0))
                else:
                    self._left[row.key] = self._left.get(row.key, 0) + 1

    def _kept_of_window(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        if not self._left:
            return
        for batch in self._batches(self._schema.names):
            kept = [self._keeps(row) for row in self._rows(batch)]
            found = pa.Table.from_batches([batch]).filter(pa.array(kept, pa.bool_()))
            if found.num_rows:
                self.kept += found.num_rows
                yield self._of_today(found)
        self._left.clear()

    def _keeps(self, row: Row) -> bool:
        left = self._left.get(row.key)
        if left is None or (self._keys.are_unique and left != row.values):
            return False
        self._take(row.key)
        return True

    def _take(self, key: Hashable) -> None:
        """Note that one row of a key is left no longer."""
        if not self._keys.are_unique and self._left[key] > 1:
            self._left[key] -= 1
        else:
            del self._left[key]

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        import pyarrow as pa

        columns = {name: batch.column(name).to_pylist() for name in self._keys.columns[1:]}
        times = batch.column("time").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        yield from self._keys.of_file({"time": times.to_pylist()} | columns)

    def _batches(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield what the window may have rows in.

        Raises:
            ArgumentError: It cannot be read.
        """
        import pyarrow as pa

        groups = [group for group, windows in self._groups if self._window in windows]
        present = set(self._file.schema_arrow.names)
        try:
            yield from self._file.iter_batches(
                batch_size=ROWS_AT_ONCE,
                row_groups=groups,
                columns=[name for name in names if name in present],
            )
        except (OSError, pa.ArrowException) as exc:
            raise self._other() from exc

    def _of_today(self, found: pa.Table) -> pa.Table:
        """Return rows with the columns of the new file.

        Raises:
            ArgumentError: A column has another type.
        """
        import pyarrow as pa

        try:
            return pa.Table.from_arrays(
                [
                    found.column(field.name).cast(field.type)
                    if field.name in found.column_names
                    else pa.nulls(found.num_rows, field.type)
                    for field in self._schema
                ],
                schema=self._schema,
            )
        except pa.ArrowException as exc:
            raise self._other() from exc

    def _opened(self) -> pq.ParquetFile:
        """Return the file.

        Raises:
            ArgumentError: It has other columns.
        """
        import pyarrow.parquet as pq

        file = pq.ParquetFile(self._stream)
        names = set(file.schema_arrow.names)
        if not set(self._keys.columns) <= names <= set(self._schema.names):
            raise self._other()
        return file

    def _windows_of_groups(self) -> Iterator[tuple[int, range]]:
        """Yield each group of rows, and the windows in which it may have some.

        Raises:
            ArgumentError: A row has no time.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        for group in range(self._file.metadata.num_row_groups):
            times = self._file.read_row_group(group, columns=["time"]).column(0)
            if times.null_count:
                raise self._other()
            if not len(times):  # as other programs write it that put files together
                continue
            ends = pc.min_max(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
            first, last = (ends[name] // self._window_us for name in ("min", "max"))
            yield group, range(first, last + 1)

    def _other(self) -> ArgumentError:
        return ArgumentError(
            f"{self._path} is there, and is no whole copy of this telemetry",
            remedy="move it away, then try again",
        )


def event_columns(block: EventsLine) -> dict[str, Any]:
    """Return events as the columns of a file."""
    return {
        "time": [round(at_s * US_PER_S) for at_s in block.at_s],
        "device": block.device,
        "kind": block.kind,
        "reason": block.reason,
        "data": [to_json(data).decode() for data in block.data],
    }


def _series_key(attributes: Mapping[str, str], kind: str) -> Hashable:
    return (kind, *sorted(attributes.items()))


def _digest(values: tuple[Any, ...]) -> bytes:
    """Return a key of few bytes: texts of events are long."""
    return hashlib.blake2b(to_json(values), digest_size=16).digest()
