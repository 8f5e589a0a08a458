"""Lines of an export hold all that is stored, each once, and nothing of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

import pytest

from controller.store.database import Database
from telemetry.server.export import lines
from telemetry.server.export.lines import EndLine, EventsLine, Line, RowsLine
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from wire.codec import from_json
from wire.telemetry import Event, GaugePoint, TelemetryBatch

START = 28_000_800
"""A minute with which a day begins."""

HEAT = "temperature_c"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> TelemetryStore:
    clock = FakeClock(START * 60.0 + 86_400)
    return TelemetryStore(database.engine, clock, reading_engine=database.reading_engine)


def read(found: Iterator[bytes]) -> list[Line]:
    return [from_json(line, cast("type[Line]", Line)) for line in found]


def test_pages_of_measurements_hold_each_row_once(
    store: TelemetryStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "ROWS_AT_ONCE", 7)
    stored = Counter[tuple[int, str, str]]()
    for number, device in enumerate(("cam-1", "cam-2", "Cam_3")):
        points = [
            GaugePoint(
                metric=HEAT, minute=START + minute, attributes={"hw.id": zone},
                count=1, total=50.0, least=50.0, greatest=50.0,
            )
            for minute in (0, 1, 2, 59, 60, 61, 200)
            for zone in ("a", "b", "c")
        ]  # fmt: skip
        stored.update((point.minute, device, point.attributes["hw.id"]) for point in points)
        batch = TelemetryBatch(device=device, boot_id="b", sequence=number, points=tuple(points))
        assert store.ingest(batch)
    series = store.series(HEAT)
    zones = {one.id: one.attributes["hw.id"] for one in series}
    found = lines.measurement_lines(store, HEAT, series, START, START + 1440)
    begun = [next(found), next(found)]
    assert database.engine.pool.checkedout() == 0, "a reader that stops holds no connection"  # type: ignore[attr-defined] # of this kind of pool
    _, *told, end = read(iter([*begun, *found]))
    rows = [
        (minute, device, zones[number])
        for line in told
        if isinstance(line, RowsLine)
        for number, minute, device in zip(line.series, line.minute, line.device, strict=True)
    ]
    assert Counter(rows) == stored
    assert end == EndLine(rows=63)
    hours = [(minute - START) // 60 for minute, *_ in rows]
    assert hours == sorted(hours), "an hour ends before the next begins"


def test_pages_of_events_hold_all_of_one_instant(
    store: TelemetryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "ROWS_AT_ONCE", 7)
    at_s = START * 60.0
    events = [
        Event(at_s=at_s + number // 20, kind="switch", reason=str(number), data={})
        for number in range(63)
    ]
    assert store.ingest(
        TelemetryBatch(device="cam-1", boot_id="b", sequence=1, events=tuple(events))
    )
    *told, end = read(lines.event_lines(store, at_s, at_s + 60))
    reasons = [each for line in told if isinstance(line, EventsLine) for each in line.reason]
    assert reasons == [str(number) for number in range(63)]
    assert end == EndLine(rows=63)
