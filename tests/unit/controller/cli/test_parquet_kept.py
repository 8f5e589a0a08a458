"""A Parquet file gives way to one that holds all of it: no row is lost, and none is there twice."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cli import parquet_files
from controller.cli.errors import ArgumentError
from controller.cli.parquet_files import new_file
from controller.client.errors import AnswerError
from telemetry.histogram import ExponentialHistogram
from telemetry.server import sketches
from telemetry.server.export.lines import EventsLine, MetricLine, RowsLine

SERIES = {"1": {"hw.id": "a"}, "2": {"variant": "int8"}}
METRIC = MetricLine(name="temperature_c", kind="gauge", unit="Cel", series=SERIES)
START = 28_000_800

Row = tuple[int, int, str]
"""Series, minute and device."""


def measured(rows: Mapping[Row, int]) -> RowsLine:
    found = sorted(rows, key=lambda row: (row[1] // 60, row))
    counts = tuple(rows[row] for row in found)
    return RowsLine(
        series=tuple(row[0] for row in found),
        minute=tuple(row[1] for row in found),
        device=tuple(row[2] for row in found),
        count=counts,
        total=tuple(50.0 * count for count in counts),
        least=(50.0,) * len(found),
        greatest=(50.0,) * len(found),
        sketch=(None,) * len(found),
    )


def test_large_histograms_become_columns_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = ExponentialHistogram()
    for at in range(-1000, 2000):
        large.add(2 ** ((at + 0.5) / 32))
    sketch = sketches.encode(large)
    number = 12
    plain = measured({(1, START + minute, "cam-1"): 1 for minute in range(number)})
    block = msgspec.structs.replace(plain, sketch=(sketch,) * number)
    monkeypatch.setattr(parquet_files, "SKETCH_BYTES_AT_ONCE", 2 * len(sketch))
    monkeypatch.setattr(parquet_files, "GROUP_BYTES", 80_000)
    path = tmp_path / "part-0.parquet"
    tracemalloc.start()
    write(path, block)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5_000_000, "two rows as objects, not all"
    file = pq.ParquetFile(path)
    assert file.num_row_groups > 3
    rows = file.read().to_pylist()
    assert [int(row["time"].timestamp()) // 60 for row in rows] == list(plain.minute)
    buckets = [{"index": index, "count": count} for index, count in large.buckets()]
    assert all(row["buckets"] == buckets for row in rows)


def happened(events: Iterable[tuple[float, str]]) -> EventsLine:
    found = sorted(events)
    return EventsLine(
        device=("cam-1",) * len(found),
        at_s=tuple(at_s for at_s, _ in found),
        kind=("switch",) * len(found),
        reason=tuple(reason for _, reason in found),
        data=({"n": 1},) * len(found),
    )


def write(path: Path, block: RowsLine | EventsLine, metric: MetricLine | None = METRIC) -> int:
    with new_file(path, metric) as file:
        file.write(block)
        file.finish()
        return file.kept


def read(path: Path) -> Counter[tuple[Row, int]]:
    found = pq.ParquetFile(path).read().to_pylist()
    return Counter(
        ((1 if row["attributes"] else 2, int(row["time"].timestamp()) // 60, row["device"]),
         row["count"])
        for row in found
    )  # fmt: skip


def test_a_day_of_which_each_copy_has_a_half_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "day" / "part-0.parquet"
    halves = [
        {(1, START + minute, "cam-1"): 1 for minute in range(first, first + 720)}
        for first in (0, 720)
    ]
    write(path, measured(halves[0]))
    assert write(path, measured(halves[1])) == 720
    assert read(path) == Counter((halves[0] | halves[1]).items())
    assert write(path, measured(halves[0])) == 720
    assert read(path) == Counter((halves[0] | halves[1]).items())


rows = st.dictionaries(
    st.tuples(
        st.sampled_from([1, 2]),
        st.integers(START, START + 200),
        st.sampled_from(["cam-1", "cam-2", "Ä"]),
    ),
    st.integers(1, 3),
    min_size=1,
)


@settings(max_examples=15)
@given(copies=st.lists(rows, min_size=2, max_size=4))
def test_of_each_row_the_copy_with_the_most_values_stays(
    tmp_path_factory: pytest.TempPathFactory, copies: list[dict[Row, int]]
) -> None:
    path = tmp_path_factory.mktemp("lake") / "part-0.parquet"
    all_of_them: dict[Row, int] = {}
    for copy in copies:
        kept = write(path, measured(copy))
        assert kept == sum(count > copy.get(row, 0) for row, count in all_of_them.items())
        for row, count in copy.items():
            all_of_them[row] = max(count, all_of_them.get(row, 0))
        assert read(path) == Counter(all_of_them.items())


events = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 3599.0, 7200.25]), st.sampled_from("ab")), min_size=1
)


@settings(max_examples=15)
@given(copies=st.lists(events, min_size=2, max_size=4))
def test_events_that_are_alike_are_counted(
    tmp_path_factory: pytest.TempPathFactory, copies: list[list[tuple[float, str]]]
) -> None:
    path = tmp_path_factory.mktemp("lake") / "part-0.parquet"
    most: Counter[tuple[float, str]] = Counter()
    for copy in copies:
        write(path, happened((START * 60 + at_s, reason) for at_s, reason in copy), None)
        most |= Counter(copy)
        found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        there = ((row["time"].timestamp() - START * 60, row["reason"]) for row in found)
        assert Counter(there) == most


def test_what_is_no_copy_of_it_is_left_as_it_is(tmp_path: Path) -> None:
    path, event = tmp_path / "part-0.parquet", happened([(START * 60.0, "a")])
    path.write_text("precious")
    with pytest.raises(ArgumentError, match="is no whole copy of this telemetry; move it away"):
        write(path, event, None)
    assert path.read_text() == "precious"
    path.unlink()
    write(path, event, None)
    with pytest.raises(ArgumentError, match="is no whole copy"):
        write(path, measured({(1, START, "cam-1"): 1}))
    assert [each.name for each in tmp_path.iterdir()] == ["part-0.parquet"]


def test_hours_that_come_in_another_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    write(path, measured({(1, START, "cam-1"): 1}))
    with pytest.raises(AnswerError, match="in another order"), new_file(path, METRIC) as file:
        for minute in (START + 60, START):
            file.write(measured({(1, minute, "cam-1"): 1}))
    assert sum(read(path).values()) == 1


def test_files_that_other_programs_put_together_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0.parquet"
    write(path, measured({(1, START, "cam-1"): 6}))
    table = pq.read_table(path)
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 0))
        writer.write_table(table)
    assert write(path, measured({(1, START + 1, "cam-1"): 6})) == 1
    assert len(read(path)) == 2
    at = table.schema.get_field_index("time")
    nameless = table.set_column(at, "time", pa.nulls(1, table.schema.field(at).type))
    pq.write_table(nameless, path)
    with pytest.raises(ArgumentError, match="is no whole copy"):
        write(path, measured({(1, START, "cam-1"): 6}))
    assert pq.read_table(path) == nameless
