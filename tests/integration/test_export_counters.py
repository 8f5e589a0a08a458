"""Counters for Prometheus: exact, never falling, and none the wiser for restarts and old rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controller.errors import SettingsError
from controller.export_settings import PrometheusConfig
from controller.exporting.alone import Alone
from controller.store.database import Database
from controller.store.sole import Sole, Work
from telemetry.errors import TelemetryStoreError
from telemetry.server import tables
from telemetry.server.export import reading
from telemetry.server.export.counters import KEPT_MINUTES, Counters
from telemetry.server.export.places import Places
from telemetry.server.export.settled import SILENT_MINUTES, Window
from telemetry.server.store import TelemetryStore
from tests.simulators.measured_fleet import LATENCY, REQUESTS, MeasuredFleet
from wire.telemetry import Event, SumPoint


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[MeasuredFleet]:
    made = MeasuredFleet(database_url, tmp_path, prometheus=PrometheusConfig(enabled=True))
    made.hand_on()  # telemetry is counted from now on
    yield made
    made.close()


def counted(fleet: MeasuredFleet, *, by_device: bool = False) -> dict[tuple[str, str], float]:
    """Read the counters from the database, as after a restart."""
    counters = Counters(
        fleet.controller._database.engine,
        fleet.controller._telemetry,
        fleet.clock,
        by_device=by_device,
    )
    named = "device" if by_device else "variant"
    return {
        (counter.series.metric, counter.series.attributes[named]): counter.total
        for counter in counters.all()
    }


def test_minutes_are_counted_once_when_they_are_settled(fleet: MeasuredFleet) -> None:
    fleet.measure("cam-1", "int8", [10.0, 20.0])
    fleet.measure("cam-2", "int8", [30.0])
    fleet.hand_on()
    assert counted(fleet) == {}, "the minute may still grow"
    fleet.measure("cam-1", "int8", [5.0])
    fleet.pass_minutes(2, "cam-1", "cam-2")
    expected = {(LATENCY, "int8"): 65.0, (REQUESTS, "int8"): 4.0}
    assert counted(fleet) == expected
    fleet.pass_minutes(3, "cam-1", "cam-2")
    fleet.kill()
    fleet.pass_minutes(3, "cam-1", "cam-2")
    assert counted(fleet) == expected


def test_a_window_that_is_too_large_is_counted_in_parts(
    fleet: MeasuredFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_WINDOW_BYTES", 1)
    minute = fleet.minute
    for at in range(5):
        for device in ("cam-1", "cam-2", "cam-3"):
            fleet.measure(device, "int8", [10.0, 20.0], minute=minute + at)
    engine, store = fleet.controller._database.engine, fleet.controller._telemetry
    series = reading.all_series(store)
    window = Window(("cam-1", "cam-2", "cam-3"), minute, minute + 4)
    read = reading.read_window(store, series, window)
    assert read.window == Window(("cam-1",), minute, minute + 1)
    rows = [row for columns in read.rows for row in reading.rows_of(columns)]
    assert len(reading.measured(rows, series)) == 3
    fleet.clock.advance(300)
    fleet.pass_minutes(2, "cam-1", "cam-2", "cam-3")
    assert counted(fleet) == {(LATENCY, "int8"): 450.0, (REQUESTS, "int8"): 30.0}
    (latency,) = [each for each in Counters(engine, store, fleet.clock).all() if each.sketch]
    assert latency.count == 30


def test_what_was_measured_offline_is_counted_when_it_comes(fleet: MeasuredFleet) -> None:
    measured_at = fleet.minute
    fleet.pass_minutes(4, "cam-2")
    fleet.clock.advance(60 * 60 * 30)
    for late in range(15):
        fleet.measure("cam-1", "int8", [1.0], minute=measured_at + late)
    fleet.measure("cam-2", "int8", [2.0])
    fleet.pass_minutes(2, "cam-1", "cam-2")
    assert counted(fleet)[REQUESTS, "int8"] == 16


def test_a_clock_that_was_ahead_at_the_first_start_keeps_nothing_back(
    fleet: MeasuredFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.clock.correct(-400 * 86_400.0)
    fleet.pass_minutes(1, "cam-1")
    fleet.measure("cam-1", "int8", [1.0])
    fleet.pass_minutes(3, "cam-1")
    assert counted(fleet)[REQUESTS, "int8"] == 1.0
    told = [record.message for record in caplog.records if "minutes ahead" in record.message]
    assert len(told) == 1


def test_an_event_whose_time_is_ahead_settles_nothing(fleet: MeasuredFleet) -> None:
    event = Event(at_s=fleet.clock.now_s() + 86_400, kind="start", reason="a wrong clock")
    fleet.send("cam-1", events=[event])
    fleet.measure("cam-1", "int8", [1.0])
    fleet.clock.advance(61)
    fleet.hand_on()
    fleet.measure("cam-1", "int8", [1.0], minute=fleet.minute - 1)
    fleet.pass_minutes(3, "cam-1")
    assert counted(fleet)[REQUESTS, "int8"] == 2.0


def test_the_last_minutes_of_a_silent_device_are_counted_in_the_end(fleet: MeasuredFleet) -> None:
    fleet.measure("cam-1", "int8", [1.0])
    fleet.clock.advance(60 * (SILENT_MINUTES - 1))
    fleet.hand_on()
    assert counted(fleet) == {}
    fleet.clock.advance(60 * 2)
    fleet.hand_on()
    assert counted(fleet)[REQUESTS, "int8"] == 1.0


def test_counters_outlive_the_rows(fleet: MeasuredFleet) -> None:
    fleet.measure("cam-1", "int8", [10.0] * 5)
    fleet.pass_minutes(3, "cam-1")
    fleet.clock.advance(86_400)
    with fleet.controller._database.engine.begin() as connection:
        connection.execute(sa.delete(tables.minute))
    fleet.measure("cam-1", "int8", [10.0] * 2)
    fleet.pass_minutes(3, "cam-1")
    assert counted(fleet)[REQUESTS, "int8"] == 7.0
    counters = Counters(fleet.controller._database.engine, fleet.controller._telemetry, fleet.clock)
    (latency,) = [each for each in counters.all() if each.series.metric == LATENCY]
    assert latency.histogram is not None
    assert (latency.count, latency.histogram.count, latency.histogram.quantile(0.5)) == (7, 7, 10)


def test_series_that_nobody_reports_any_more_go(fleet: MeasuredFleet) -> None:
    fleet.measure("cam-1", "int8", [1.0])
    fleet.pass_minutes(3, "cam-1")
    fleet.clock.advance(60 * KEPT_MINUTES)
    fleet.hand_on()
    assert counted(fleet) == {}
    fleet.measure("cam-1", "int8", [1.0])
    fleet.pass_minutes(2, "cam-1")
    assert counted(fleet)[REQUESTS, "int8"] == 1.0


def test_devices_may_have_counters_of_their_own(fleet: MeasuredFleet) -> None:
    fleet.settle(prometheus=PrometheusConfig(enabled=True, by_device=True))
    fleet.hand_on()
    fleet.measure("cam-1", "int8", [1.0])
    fleet.measure("cam-2", "int8", [1.0, 2.0])
    fleet.pass_minutes(3, "cam-1", "cam-2")
    found = counted(fleet, by_device=True)
    assert (found[REQUESTS, "cam-1"], found[REQUESTS, "cam-2"]) == (1.0, 2.0)
    text = fleet.api.get("/metrics").text
    assert 'edgefleet_temperature_celsius_max{device="cam-2"} 50.0' in text


def test_nothing_is_counted_when_the_places_cannot_be_kept(fleet: MeasuredFleet) -> None:
    fleet.measure("cam-1", "int8", [1.0])
    fleet.clock.advance(180)
    fleet.measure("cam-1", "int8", [1.0])
    engine = fleet.controller._database.engine
    counters = Counters(engine, fleet.controller._telemetry, fleet.clock)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE telemetry_export_counter RENAME TO away"))
    with pytest.raises(TelemetryStoreError, match="telemetry database failed"):
        counters.count()
    fleet.hand_on()  # says so in the log, and goes on
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO telemetry_export_counter"))
    fleet.hand_on()
    assert counted(fleet)[REQUESTS, "int8"] == 1.0


@contextmanager
def answers_to_commits_lost(engine: sa.Engine) -> Iterator[None]:
    """Lose the connection while counters are written: they are kept, and nobody is told."""
    written: list[sa.Connection] = []

    def execute(connection: sa.Connection, _: Any, statement: str, *__: Any) -> None:
        if "telemetry_export_counter" in statement and not statement.startswith("SELECT"):
            written.append(connection)

    def commit(connection: sa.Connection) -> None:
        if connection in written:
            connection.connection.commit()
            raise sa.exc.OperationalError("COMMIT", {}, Exception("the server is gone"))

    sa.event.listen(engine, "before_cursor_execute", execute)
    sa.event.listen(engine, "commit", commit)
    yield
    sa.event.remove(engine, "before_cursor_execute", execute)
    sa.event.remove(engine, "commit", commit)
    assert written


def test_counters_are_right_when_the_answer_to_a_commit_is_lost(fleet: MeasuredFleet) -> None:
    engine = fleet.controller._database.engine
    counters = Counters(engine, fleet.controller._telemetry, fleet.clock, by_device=True)

    def settle(variant: str, number: int) -> None:
        fleet.measure("cam-1", variant, [1.0] * number)
        fleet.clock.advance(180)
        fleet.measure("cam-1", "int8", [1.0])

    assert not counters.count()
    settle("int8", 5)
    with answers_to_commits_lost(engine), pytest.raises(TelemetryStoreError, match="is gone"):
        counters.count()
    settle("new", 7)
    counters.count()
    found = {each.series.attributes["variant"]: each.total for each in counters.all()
             if each.series.metric == REQUESTS}  # fmt: skip
    assert found == {"int8": 6.0, "new": 7.0}


def test_of_two_controllers_of_a_database_one_counts(
    fleet: MeasuredFleet, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(database_url)
    store = TelemetryStore(database.engine, fleet.clock)
    counters = Counters(database.engine, store, fleet.clock)
    other = Alone(Sole(database, Work.COUNTING), "counting", counters.count, counters.forget)
    is_shared = database_url.startswith("postgresql")  # SQLite: the directory is locked

    def measure(number: int) -> None:
        fleet.measure("cam-1", "int8", [1.0] * number)
        fleet.pass_minutes(3, "cam-1")
        if is_shared:
            other.work()

    measure(5)
    measure(2)
    if is_shared:
        assert "left to another controller" in caplog.text
        fleet.controller.exports.stop(1.0)
    while other.work():
        pass
    fleet.measure("cam-1", "int8", [1.0] * 3)
    fleet.clock.advance(180)
    fleet.measure("cam-1", "int8", [1.0])
    while other.work():
        pass
    assert counted(fleet)[REQUESTS, "int8"] == 10.0
    assert {each.total for each in counters.all() if each.series.metric == REQUESTS} == {10.0}
    other.close()
    database.close()


def test_a_place_that_another_has_moved_is_not_moved_again(fleet: MeasuredFleet) -> None:
    places = Places(fleet.controller._database.engine, "test")
    first, second = Window(("cam-1",), 5, 6), Window(("cam-1",), 6, 8)
    for window, known in ((first, {}), (second, {"cam-1": 6})):
        with places.writing() as connection:
            places.keep(connection, window, known)
    with pytest.raises(TelemetryStoreError, match="another process"), places.writing() as again:
        places.keep(again, second, {"cam-1": 6})
    assert places.done() == {"cam-1": 8}


def test_no_device_takes_a_name_on_the_page(
    fleet: MeasuredFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.enrol("cam-1")
    fleet.measure("cam-1", "int8", [1.0] * 5)
    names = ("inference_requests", "controller_messages_total", "own_n", "own.n")
    fleet.send(
        "rogue",
        *(SumPoint(metric=name, minute=fleet.minute, attributes={}, value=9.0) for name in names),
    )
    fleet.pass_minutes(3, "cam-1", "rogue")
    for page in (fleet.api.get("/metrics").text for _ in range(2)):
        (requests,) = re.findall(r"^edgefleet_inference_requests_total\{.*", page, re.MULTILINE)
        assert requests.endswith(" 5.0")
        assert re.findall(r"^\S* 9\.0$", page, re.MULTILINE) == ["edgefleet_own_n_total 9.0"]
        assert page.count("# TYPE edgefleet_controller_messages_total") == 1
    told = [record.getMessage() for record in caplog.records if "/metrics" in record.getMessage()]
    assert len(told) == 3
    assert "edgefleet_inference_requests_total is the name of `inference_requests_total`" in told[1]
    assert "metric own_n of devices is not, or not all, at /metrics" in told[2]


def test_the_page_needs_a_token_and_may_have_one_of_its_own(
    fleet: MeasuredFleet, tmp_path: Path
) -> None:
    secret = "metrics-0123456789abcdef"
    file = tmp_path / "metrics.token"
    file.write_text(f"{secret}\n")
    config = PrometheusConfig(enabled=True, token_file=str(file))
    file.chmod(0o644)
    with pytest.raises(SettingsError, match=r"the token for metrics in .* can be read by others"):
        fleet.settle(prometheus=config)
    file.chmod(0o600)
    fleet.settle(prometheus=config)
    fleet.measure("cam-1", "int8", [1.0])
    fleet.pass_minutes(3, "cam-1")
    only = {"Authorization": f"Bearer {secret}"}
    assert 'edgefleet_inference_requests_total{model="digits"' in fleet.api.get("/metrics").text
    assert fleet.api.get("/metrics", headers=only).status_code == 200
    assert fleet.api.get("/v1/devices", headers=only).status_code == 401
    wrong = fleet.api.get("/metrics", headers={"Authorization": "Bearer x"})
    assert wrong.status_code == 401
    # Whoever scrapes is not sent for the token that opens everything.
    assert "prometheus.token_file" in wrong.json()["remedy"]


def test_without_the_setting_there_is_no_page(fleet: MeasuredFleet) -> None:
    fleet.settle(prometheus=PrometheusConfig())
    answer = fleet.api.get("/metrics")
    assert (answer.status_code, "[prometheus]" in answer.json()["remedy"]) == (404, True)


def test_the_controllers_own_figures(fleet: MeasuredFleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.devices["cam-2"].leave()
    page = fleet.api.get("/metrics").text
    profile = fleet.devices["cam-1"].profile.name
    for line in (
        f'edgefleet_controller_devices{{online="false",profile="{profile}"}} 1.0',
        f'edgefleet_controller_devices{{online="true",profile="{profile}"}} 1.0',
        'edgefleet_controller_messages_total{kind="hello"} 2.0',
        "edgefleet_controller_waiting_messages 0.0",
        "edgefleet_controller_broker_connected 1.0",
        "edgefleet_controller_alert_rules_in_error 0.0",
        'edgefleet_controller_alerts_firing{severity="critical"} 0.0',
    ):
        assert line in page.splitlines(), page
