"""Parquet files of telemetry, partitioned by day: the one door to PyArrow.

Rules:
- A file appears whole or not at all.
- A file is replaced by a newer copy of its day, but never by one with fewer rows: what the
  controller has deleted meanwhile stays in the file.
- Memory is bounded by the rows of one line of the controller's answer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from controller.cli.errors import ArgumentError
from telemetry.histogram import ExponentialHistogram
from telemetry.server import sketches
from telemetry.server.export.lines import EventsLine, MetricLine, RowsLine
from wire.codec import to_json
from wire.files import PUBLIC, opened_alone, sync_directory, temporary_of

if TYPE_CHECKING:
    import pyarrow as pa

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PART: Final = "part-0.parquet"
_NAMED: Final = ("model", "release", "variant")
_US_PER_S: Final = 1_000_000
_US_PER_MINUTE: Final = 60 * _US_PER_S


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
    """A file that is being written; one or more blocks of rows, in any order.

    Args:
        path: Where it will be.
        metric: The first line of the controller's answer; None for events.
    """

    def __init__(self, path: Path, metric: MetricLine | None) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._metric = metric
        self._schema = measurement_schema() if metric else event_schema()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = temporary_of(path)
        self._stream = os.fdopen(opened_alone(self._temporary, PUBLIC), "wb")
        self._stream.truncate(0)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self.rows = 0

    def write(self, block: RowsLine | EventsLine) -> None:
        """Add rows.

        Args:
            block: Rows of the metric, or events.
        """
        import pyarrow as pa

        if isinstance(block, EventsLine):
            columns = _event_columns(block)
        else:
            columns = _measurement_columns(block, self._metric)
        self._writer.write_table(pa.Table.from_pydict(columns, schema=self._schema))
        self.rows += len(block.device)

    def finish(self) -> bool:
        """Let the file take its place.

        Returns:
            Whether it did; False if the file that is there has more rows.
        """
        self._writer.close()
        takes_place = self.rows >= _rows_of(self._path)
        if takes_place:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._temporary.replace(self._path)
        self.abandon()
        if takes_place:
            sync_directory(self._path.parent)
        return takes_place

    def abandon(self) -> None:
        """Leave nothing behind of a file that did not take its place."""
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._stream.close()


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
        *((name, pa.string()) for name in _NAMED),
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


def _measurement_columns(block: RowsLine, metric: MetricLine | None) -> dict[str, Any]:
    series = metric.series if metric is not None else {}
    attributes = [series.get(str(number), {}) for number in block.series]
    rest = [
        {name: value for name, value in each.items() if name not in _NAMED} for each in attributes
    ]
    found = [None if each is None else sketches.decode(each) for each in block.sketch]
    size = len(block.device)
    return {
        "time": [minute * _US_PER_MINUTE for minute in block.minute],
        "device": block.device,
        **{name: [each.get(name) for each in attributes] for name in _NAMED},
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


def _event_columns(block: EventsLine) -> dict[str, Any]:
    return {
        "time": [round(at_s * _US_PER_S) for at_s in block.at_s],
        "device": block.device,
        "kind": block.kind,
        "reason": block.reason,
        "data": [to_json(data).decode() for data in block.data],
    }


def _rows_of(path: Path) -> int:
    """Return how many rows a file has; 0 without a file, or if it is none of Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0
