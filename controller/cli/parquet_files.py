"""Parquet files of telemetry, partitioned by day: the one door to PyArrow.

Rules:
- A file appears whole or not at all.
- A file is replaced by a newer copy of its day, together with what that lacks and the file holds
  (`controller.cli.parquet_kept`): what the controller has deleted meanwhile stays.
- Memory is bounded by the rows of one line of the controller's answer, and the keys of the rows of
  one hour. Large histograms become columns a few at a time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from controller.cli.errors import ArgumentError
from controller.cli.parquet_kept import (
    NAMED,
    US_PER_MINUTE,
    EarlierFile,
    Keys,
    event_columns,
)
from telemetry.histogram import ExponentialHistogram
from telemetry.server import sketches
from telemetry.server.export.lines import ROWS_OF_SERIES, EventsLine, MetricLine, RowsLine
from telemetry.server.levels import MINUTES
from wire.files import PUBLIC, opened_alone, sync_directory, temporary_of

if TYPE_CHECKING:
    import pyarrow as pa

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PART: Final = "part-0.parquet"
WINDOW_US: Final = ROWS_OF_SERIES * US_PER_MINUTE
"""Measurements of minutes come hour by hour; events in their order."""

SKETCH_BYTES_AT_ONCE: Final = 128 * 1024
"""Of histograms that are objects at the same time: up to 500 bytes for each of theirs."""

GROUP_BYTES: Final = 8 * 1024**2
"""Of a group of rows in the file; that of an ordinary line takes some 2 MiB."""

WHOLE_US: Final = 2**62
"""A file of hours or days is one window."""


def check_library() -> None:
    """Refuse to begin without the extra.

    Raises:
        ArgumentError: It is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ArgumentError(
            "PyArrow is not installed here, and Parquet files need it",
            remedy="pip install 'edgefleet[parquet]'",
        )


class NewFile:
    """A file that is being written; one or more blocks of rows, hour by hour.

    Args:
        path: Where it will be.
        metric: The first line of the controller's answer; None for events.
    """

    def __init__(self, path: Path, metric: MetricLine | None) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._metric = metric
        self._schema = measurement_schema() if metric else event_schema()
        self._keys = Keys(metric)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = temporary_of(path)
        self._stream = os.fdopen(opened_alone(self._temporary, PUBLIC), "wb")
        self._stream.truncate(0)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._earlier: EarlierFile | None = None
        self.rows = 0
        """How many rows it has."""

        self.came = 0
        """How many rows the controller's answer had."""

    @property
    def kept(self) -> int:
        """How many rows of the earlier file the answer does not have."""
        return 0 if self._earlier is None else self._earlier.kept

    def begin(self) -> None:
        """Look at the file that is there: no other writer replaces it from now on.

        Raises:
            ArgumentError: It is something else.
            OSError: It cannot be read.
        """
        of_minutes = self._metric is None or self._metric.level == MINUTES.name
        with contextlib.suppress(FileNotFoundError):
            self._earlier = EarlierFile(
                self._path, self._schema, self._keys, WINDOW_US if of_minutes else WHOLE_US
            )

    def write(self, block: RowsLine | EventsLine) -> None:
        """Add rows.

        Args:
            block: Rows of the metric, or events.

        Raises:
            AnswerError: They are of an earlier hour than those before.
            ArgumentError: The file that is there is damaged.
        """
        import pyarrow as pa

        if isinstance(block, EventsLine):
            parts: Iterator[dict[str, Any]] = iter([event_columns(block)])
        else:
            parts = (_measurement_columns(part, self._metric) for part in _parts(block))
        table = pa.concat_tables(
            [pa.Table.from_pydict(columns, schema=self._schema) for columns in parts]
        )
        self.came += table.num_rows
        if self._earlier is not None:
            taken = []
            for row in self._keys.of_answer(block):
                for kept in self._earlier.reach(row.time_us):
                    self._write(kept)
                taken.append(self._earlier.gives_way(row))
            table = table.filter(pa.array(taken, pa.bool_()))
        self._write(table)

    def finish(self) -> int:
        """Let the file take its place.

        Returns:
            How many rows it has.

        Raises:
            ArgumentError: The file that is there is damaged.
        """
        for kept in () if self._earlier is None else self._earlier.rest():
            self._write(kept)
        self._writer.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._temporary.replace(self._path)
        self.abandon()
        sync_directory(self._path.parent)
        return self.rows

    def _write(self, table: pa.Table) -> None:
        if table.num_rows:
            at_once = max(1, table.num_rows * GROUP_BYTES // max(table.nbytes, 1))
            self._writer.write_table(table, row_group_size=at_once)
        self.rows += table.num_rows

    def abandon(self) -> None:
        """Leave nothing behind of a file that did not take its place."""
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._stream.close()
        if self._earlier is not None:
            self._earlier.close()


@contextlib.contextmanager
def new_file(path: Path, metric: MetricLine | None) -> Iterator[NewFile]:
    """Write a file; without `finish`, or after an error, nothing is left of it.

    Args:
        path: Where it will be.
        metric: The first line of the controller's answer; None for events.

    Yields:
        The file.
    """
    made = NewFile(path, metric)
    try:
        made.begin()
        yield made
    finally:
        made.abandon()


def measurement_schema() -> pa.Schema:
    """Return the columns of measurements; `docs/exports.md` says what they mean."""
    import pyarrow as pa

    bucket = pa.struct([
        pa.field("index", pa.int32(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ])  # fmt: skip
    fields: list[tuple[str, Any]] = [
        ("time", pa.timestamp("us", tz="UTC")),
        ("device", pa.string()),
        *((name, pa.string()) for name in NAMED),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("kind", pa.string()),
        ("unit", pa.string()),
        ("count", pa.int64()),
        ("total", pa.float64()),
        ("least", pa.float64()),
        ("greatest", pa.float64()),
        ("zeros", pa.int64()),
        ("buckets", pa.list_(bucket)),
        *((name, pa.float64()) for name in QUANTILES),
    ]
    return pa.schema(fields)


def event_schema() -> pa.Schema:
    """Return the columns of events."""
    import pyarrow as pa

    return pa.schema([
        ("time", pa.timestamp("us", tz="UTC")),
        ("device", pa.string()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("data", pa.string()),
    ])  # fmt: skip


def _parts(block: RowsLine) -> Iterator[RowsLine]:
    """Yield the rows of a line, those that become columns together."""
    if not block.sketch:
        yield block
    first = size_bytes = 0
    last = len(block.sketch) - 1
    for at, sketch in enumerate(block.sketch):
        size_bytes += len(sketch or b"")
        if size_bytes >= SKETCH_BYTES_AT_ONCE or at == last:
            names = RowsLine.__struct_fields__
            yield RowsLine(**{name: getattr(block, name)[first : at + 1] for name in names})
            first, size_bytes = at + 1, 0


def _measurement_columns(block: RowsLine, metric: MetricLine | None) -> dict[str, Any]:
    series = metric.series if metric is not None else {}
    attributes = [series.get(str(number), {}) for number in block.series]
    rest = [
        {name: value for name, value in each.items() if name not in NAMED} for each in attributes
    ]
    found = [None if each is None else sketches.decode(each) for each in block.sketch]
    size = len(block.device)
    return {
        "time": [minute * US_PER_MINUTE for minute in block.minute],
        "device": block.device,
        **{name: [each.get(name) for each in attributes] for name in NAMED},
        "attributes": [list(each.items()) for each in rest],
        "kind": [metric.kind if metric is not None else ""] * size,
        "unit": [metric.unit if metric is not None else ""] * size,
        "count": block.count,
        "total": block.total,
        "least": block.least,
        "greatest": block.greatest,
        "zeros": [None if each is None else each.zeros for each in found],
        "buckets": [None if each is None else _buckets(each) for each in found],
        **{
            name: [None if each is None else each.quantile(q) for each in found]
            for name, q in QUANTILES.items()
        },
    }


def _buckets(histogram: ExponentialHistogram) -> list[dict[str, int]]:
    return [{"index": index, "count": count} for index, count in histogram.buckets()]
