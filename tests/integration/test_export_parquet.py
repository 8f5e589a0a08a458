"""`fleet telemetry export` writes files that say what the store says."""

from __future__ import annotations

import importlib.util
import math
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from controller.api.services import MAX_EXPORTS
from controller.cli.export import DAY_S
from telemetry.histogram import RELATIVE_ERROR
from telemetry.server import tables
from tests.simulators.controller_fleet import API_TOKEN
from tests.simulators.measured_fleet import LATENCY, TEMPERATURE, MeasuredFleet
from tests.simulators.stack import Done, fleet_here
from wire.clock import SystemClock
from wire.telemetry import Event

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
DEVICES = ("cam-1", "cam-2")


class Site:
    """A controller over HTTP, with telemetry of yesterday and today, and a directory for files."""

    def __init__(self, fleet: MeasuredFleet, url: str, folder: Path) -> None:
        self.fleet = fleet
        self.lake = folder / "lake"
        self._connection = ("--url", url, "--token-file", str(folder / "api.token"))

    def export(self, *options: str) -> Done:
        return fleet_here("telemetry", "export", str(self.lake), *options, *self._connection)

    def rows(self, metric: str) -> list[dict[str, Any]]:
        dataset = ds.dataset(self.lake / f"metric={metric}", partitioning="hive")
        found: list[dict[str, Any]] = dataset.to_table().to_pylist()
        return found

    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.lake)) for p in self.lake.rglob("*") if p.is_file())


@pytest.fixture
def site(sqlite_template: Path, tmp_path: Path) -> Iterator[Site]:
    database = shutil.copyfile(sqlite_template, tmp_path / "fleet.db")
    fleet = MeasuredFleet(f"sqlite:///{database}", tmp_path)
    # Commands have the clock of this machine. The middle of a day is far from its end.
    noon_s = SystemClock().now_s() // DAY_S * DAY_S + DAY_S / 2
    fleet.clock.correct(noon_s - fleet.clock.now_s())
    try:
        generator = random.Random(1)
        for day in (1, 0):
            for minute in range(5):
                for device in DEVICES:
                    at = int(noon_s - day * DAY_S) // 60 + minute
                    values = [0.0, *(generator.lognormvariate(3, 0.5) for _ in range(40))]
                    fleet.measure(device, "int8", values, minute=at)
        fleet.clock.advance(600)
        with fleet.serving() as url:
            yield Site(fleet, url, tmp_path)
    finally:
        fleet.close()


def day(site: Site, ago: int = 0) -> str:
    from time import gmtime, strftime

    return strftime("%Y-%m-%d", gmtime(site.fleet.clock.now_s() - ago * DAY_S))


def test_the_files_say_what_the_store_says(site: Site) -> None:
    done = site.export("--since", "1d")
    assert done.code == 0, done.err
    assert f"metric={LATENCY}/day={day(site)}/part-0.parquet" in site.files()
    assert len(site.files()) == 6, "three metrics, two days, and nothing else"
    rows = site.rows(LATENCY)
    assert len(rows) == 20
    asked = {"metric": LATENCY, "stat": "count,total,min,max,p50,p95,p99", "by": "device,minute"}
    answer = site.fleet.api.get("/v1/telemetry/query", params=asked | {"since": "2d"})
    told = {tuple(row[:2]): row[2:] for row in answer.raise_for_status().json()["rows"]}
    for row in rows:
        count, total, least, greatest, *quantiles = told.pop(
            (row["device"], row["time"].timestamp() // 60)
        )
        assert (row["count"], row["total"]) == (count, pytest.approx(total))
        assert (row["least"], row["greatest"]) == (least, greatest)
        assert [row["p50"], row["p95"], row["p99"]] == pytest.approx(quantiles)
        assert sum(bucket["count"] for bucket in row["buckets"]) + row["zeros"] == count
        assert (row["model"], row["release"], row["variant"]) == ("digits", "digits:1.0.0", "int8")
        assert (row["kind"], row["unit"], row["attributes"]) == ("histogram", "ms", [])
        assert str(row["day"]) == row["time"].strftime("%Y-%m-%d")
    assert told == {}
    gauge = site.rows(TEMPERATURE)[0]
    assert (gauge["buckets"], gauge["zeros"], gauge["p50"], gauge["release"]) == (None,) * 4


def test_buckets_are_those_of_opentelemetry(site: Site) -> None:
    at = site.fleet.minute
    site.fleet.measure("cam-9", "int8", [8.0, 8.1, 100.0], minute=at + 1)
    assert site.export("--since", "0", "--metric", LATENCY).code == 0
    (row,) = [row for row in site.rows(LATENCY) if row["device"] == "cam-9"]
    for bucket in row["buckets"]:
        low, high = 2 ** (bucket["index"] / 32), 2 ** ((bucket["index"] + 1) / 32)
        inside = [value for value in (8.0, 8.1, 100.0) if low < value <= high]
        assert len(inside) == bucket["count"]


def test_the_same_day_again_brings_it_up_to_date(site: Site) -> None:
    assert site.export("--since", "0", "--metric", LATENCY).code == 0
    (before,) = site.files()
    site.fleet.measure("cam-3", "int8", [1.0])
    assert site.export("--since", "0", "--metric", LATENCY).code == 0
    assert site.files() == [before]
    assert len(site.rows(LATENCY)) == 11


def test_a_time_without_telemetry_has_no_file_and_that_is_said(site: Site) -> None:
    done = site.export("--since", "9d", "--until", day(site, 8))
    assert (done.code, site.files()) == (0, [])
    assert done.err == "no telemetry of that time: no file was written\n"


def forget(site: Site, before_s: float) -> None:
    """Delete minutes, as a controller does that keeps them for a shorter time."""
    with site.fleet.controller._database.engine.begin() as connection:
        connection.execute(sa.delete(tables.minute).where(tables.minute.c.minute < before_s // 60))


def test_what_the_controller_has_deleted_stays(site: Site) -> None:
    assert site.export("--since", "1d", "--metric", LATENCY).code == 0
    now_s = site.fleet.clock.now_s()
    forget(site, now_s - DAY_S - 600 + 120)
    done = site.export("--since", "1d", "--metric", LATENCY, "--json")
    assert done.json["kept"] == [
        str(site.lake / f"metric={LATENCY}" / f"day={day(site, 1)}" / "part-0.parquet")
    ]
    site.fleet.measure("cam-3", "int8", [1.0], minute=int(now_s - 600) // 60 + 3)
    forget(site, now_s - 600 + 120)
    assert site.export("--since", "1d", "--metric", LATENCY).code == 0
    assert len(site.rows(LATENCY)) == 21


def test_hours_and_days_outlive_their_minutes(site: Site) -> None:
    assert not site.fleet.controller._telemetry.roll_up(math.inf)
    forget(site, site.fleet.clock.now_s())
    yesterday = site.fleet.clock.now_s() - DAY_S
    noon_s = yesterday // DAY_S * DAY_S + DAY_S // 2
    for level, folder, at_s in (
        ("hour", f"hours/metric={LATENCY}/day={day(site, 1)}", noon_s),
        ("day", f"days/metric={LATENCY}/month={day(site, 1)[:7]}", noon_s - DAY_S // 2),
    ):
        done = site.export("--since", "1d", "--metric", LATENCY, "--level", level)
        assert done.code == 0, done.err
        rows = pq.read_table(site.lake / folder / "part-0.parquet").to_pylist()
        assert [(row["device"], row["count"]) for row in rows] == [(name, 205) for name in DEVICES]
        assert {row["time"].timestamp() for row in rows} == {at_s}
        assert sum(bucket["count"] for bucket in rows[0]["buckets"]) + rows[0]["zeros"] == 205
    assert all(path.startswith(("hours/", "days/")) for path in site.files())


def test_events_have_files_of_their_own(site: Site) -> None:
    now_s = site.fleet.clock.now_s()
    events = [
        Event(at_s=now_s + number / 64, kind="switch", reason="zu heiß", data={"n": number})
        for number in range(100)
    ]
    site.fleet.send("cam-1", events=events)
    assert site.export("--since", "0", "--metric", LATENCY, "--events").code == 0
    rows = pq.read_table(site.lake / "events" / f"day={day(site)}" / "part-0.parquet").to_pylist()
    assert [row["data"] for row in rows] == [f'{{"n":{number}}}' for number in range(100)]
    assert rows[64]["time"].timestamp() == pytest.approx(now_s + 1)
    assert {(row["device"], row["kind"], row["reason"]) for row in rows} == {
        ("cam-1", "switch", "zu heiß")
    }


def test_what_cannot_be_is_one_line(site: Site, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    for words, said in (
        (("--metric", "inference_latency"), "no device has reported a metric 'inference_latency'"),
        (("--since", "1d", "--until", "2d"), "--until is before --since"),
        (("--since", "soon"), "--since: "),
        (("--level", "week"), "--level: there is no level 'week'"),
        ((), "cannot write"),
    ):
        done = site.export(*words)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert said in done.err


def test_a_controller_that_ends_early_leaves_no_file(site: Site) -> None:
    with site.fleet.controller._database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE telemetry_minute RENAME TO away"))
    done = site.export("--since", "0", "--metric", LATENCY)
    assert done.code == 2
    assert done.err.startswith("fleet: the controller ended before all of the telemetry came")
    assert site.files() == []


def test_an_answer_of_a_year_is_refused(site: Site) -> None:
    asked: dict[str, str | float] = {"metric": LATENCY, "since_s": 0, "until_s": 1e11}
    answer = site.fleet.api.get("/v1/telemetry/export/measurements", params=asked)
    assert (answer.status_code, "each day" in answer.json()["remedy"]) == (422, True)
    asked |= {"metric": "no_such", "until_s": 60}
    answer = site.fleet.api.get("/v1/telemetry/export/measurements", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (404, "telemetry.unknown_metric")


def test_a_time_that_cannot_be_is_refused_everywhere(site: Site) -> None:
    exports = "/v1/telemetry/export"
    site.fleet.enrol("cam-1")
    for at_s in ("1e20", "1e308", "-1", "nan", "inf", "-inf"):
        for path, asked in (
            (f"{exports}/measurements", {"metric": LATENCY, "since_s": at_s, "until_s": at_s}),
            (f"{exports}/events", {"since_s": at_s, "until_s": at_s}),
            ("/v1/devices/cam-1/events", {"since_s": at_s}),
            ("/v1/telemetry/events", {"since": at_s}),
            ("/v1/telemetry/query", {"metric": LATENCY, "since": at_s}),
        ):
            answer = site.fleet.api.get(path, params=asked)
            assert answer.status_code == 422, path
            assert "\n" not in answer.json()["message"]


def test_one_export_too_many_is_told_to_come_again(site: Site) -> None:
    exports = site.fleet.controller.app.state.services.exports
    asked = {"since_s": 0, "until_s": 60}
    with ExitStack() as running:
        for _ in range(MAX_EXPORTS):
            running.enter_context(exports.one())
        answer = site.fleet.api.get("/v1/telemetry/export/events", params=asked)
        assert (answer.status_code, answer.json()["code"]) == (503, "controller.busy")
        assert answer.headers["retry-after"] == "5"
        done = site.export("--events")
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert site.fleet.api.get("/v1/telemetry/export/events", params=asked).status_code == 200


@pytest.mark.skipif(importlib.util.find_spec("duckdb") is None, reason="DuckDB is not installed")
def test_duckdb_reads_the_files(site: Site) -> None:
    import duckdb

    assert site.export("--since", "1d").code == 0
    files = str(site.lake / "metric=*" / "day=*" / "*.parquet")
    table = duckdb.read_parquet(files, hive_partitioning=True)
    (query,) = re.findall(r"(?s)```sql\n(.*?)```", PAGE.read_text())
    query = query.replace("lake/", f"{site.lake}/").replace("2026-11-20", day(site, 1))
    ((variant, p95),) = duckdb.sql(query).fetchall()
    asked = {"metric": LATENCY, "stat": "p95", "by": "variant", "since": "2d"}
    answer = site.fleet.api.get("/v1/telemetry/query", params=asked).raise_for_status().json()
    assert answer["rows"] == [[variant, pytest.approx(p95, rel=RELATIVE_ERROR)]]
    buckets = table.filter(f"metric = '{LATENCY}'").project("unnest(buckets) AS bucket")
    assert buckets.aggregate("sum(bucket.count)").fetchall() == [(20 * 40,)]


def test_the_token_is_needed(site: Site) -> None:
    for path in ("measurements", "events"):
        answer = site.fleet.api.get(
            f"/v1/telemetry/export/{path}", headers={"Authorization": f"Bearer {API_TOKEN}x"}
        )
        assert answer.status_code == 401
