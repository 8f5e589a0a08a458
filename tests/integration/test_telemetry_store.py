"""The store counts each batch once and answers with true quantiles, on both databases."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from telemetry.errors import QueryError, TelemetryStoreError, UnknownMetricError
from telemetry.histogram import RELATIVE_ERROR, VALUE_MAX, ZERO_MAX, ExponentialHistogram
from telemetry.metrics import Kind
from telemetry.server import compare, tables
from telemetry.server.event_log import EventQuery
from telemetry.server.export.reading import all_series
from telemetry.server.grouping import Groups
from telemetry.server.levels import MINUTES, Part
from telemetry.server.pruning import Retention
from telemetry.server.query import Query, parse, run
from telemetry.server.question import MAX_NAMED, STATISTICS
from telemetry.server.series import (
    COMMON_SERIES,
    MAX_SERIES,
    RESERVED_OF_DEVICE,
)
from telemetry.server.store import USUAL, TelemetryStore, metadata
from tests.simulators.clock import FakeClock
from wire.codec import to_msgpack
from wire.errors import WireFormatError
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    Point,
    SumPoint,
    TelemetryBatch,
)

LATENCY = "inference_latency_ms"
MINUTE = 28_000_000
NOW_S = (MINUTE + 10) * 60.0


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: sa.Engine) -> TelemetryStore:
    store = TelemetryStore(engine)
    store.create_all()
    return store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW_S)


@pytest.fixture
def aging(engine: sa.Engine, clock: FakeClock) -> TelemetryStore:
    """Return a store that forgets."""
    days = {"minutes_s": 7, "hours_s": 90, "days_s": 730, "events_s": 7}
    kept = {name: number * 86_400.0 for name, number in days.items()}
    store = TelemetryStore(engine, clock, retention=Retention(**kept))
    store.create_all()
    return store


def age(store: TelemetryStore, clock: FakeClock, days: float) -> None:
    clock.advance(days * 86_400.0)
    assert not store.roll_up(math.inf)
    store.prune()


def of(*devices: str, **asked: Any) -> EventQuery:
    return EventQuery(devices=frozenset(devices), **asked)


def latency(
    values: list[float], *, variant: str = "int8", minute: int = MINUTE, **attributes: str
) -> HistogramPoint:
    histogram = ExponentialHistogram()
    for value in values:
        histogram.add(value)
    named = {"variant": variant, "release": "digits:1.0"} | attributes
    return HistogramPoint(
        metric=LATENCY, minute=minute, attributes=named, blob=histogram.to_bytes()
    )


def requests(value: float, minute: int = MINUTE, variant: str = "int8") -> SumPoint:
    attributes = {"variant": variant}
    return SumPoint(
        metric="inference_requests_total", minute=minute, attributes=attributes, value=value
    )


def temperature(*values: float, minute: int = MINUTE) -> GaugePoint:
    return GaugePoint(
        metric="temperature_c",
        minute=minute,
        attributes={},
        count=len(values),
        total=sum(values),
        least=min(values),
        greatest=max(values),
    )


def batch(
    *points: Point, device: str = "pi-1", sequence: int = 0, **more: object
) -> TelemetryBatch:
    fields = {"boot_id": "boot"} | more
    return TelemetryBatch(device=device, sequence=sequence, points=points, **fields)  # type: ignore[arg-type]  # fields of any type


def ask(store: TelemetryStore, metric: str = LATENCY, **words: str) -> list[tuple[object, ...]]:
    return list(run(store, parse(metric, now_s=NOW_S, **words)).rows)


def rank(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values) - 1e-9) - 1]


def test_a_batch_is_counted_once_however_often_it_comes(store: TelemetryStore) -> None:
    sent = batch(latency([10.0, 20.0]), requests(2), temperature(50, 60))
    assert [store.ingest(sent) for _ in range(3)] == [True, False, False]
    assert ask(store, statistics="count,total,min,max") == [(2, 30, 10, 20)]
    assert ask(store, "inference_requests_total", statistics="total") == [(2,)]
    assert ask(store, "temperature_c") == [(2, 55, 50, 60)]


def test_batches_out_of_order_and_other_boots_count_too(store: TelemetryStore) -> None:
    for sequence, boot in ((5, "a"), (3, "a"), (4, "a"), (3, "b"), (5, "a"), (3, "b")):
        store.ingest(batch(requests(1), sequence=sequence, boot_id=boot))
    assert ask(store, "inference_requests_total", statistics="total") == [(4,)]


def test_a_renamed_metric_is_found_by_either_name(store: TelemetryStore) -> None:
    for device, name, charge in (("old", "battery_ratio", 0.5), ("new", "hw.battery.charge", 0.9)):
        point = msgspec.structs.replace(temperature(charge), metric=name)
        store.ingest(batch(point, device=device))
    for name in ("battery_ratio", "hw.battery.charge"):
        assert ask(store, name, statistics="count,min,max") == [(2, 0.5, 0.9)]
        assert ask(store, name, statistics="max", group_by="device") == [("new", 0.9), ("old", 0.5)]


def test_batches_of_one_minute_merge(store: TelemetryStore) -> None:
    generator = random.Random(1)
    values = [generator.lognormvariate(3, 0.5) for _ in range(400)]
    for sequence in range(4):
        part = values[sequence::4]
        store.ingest(batch(latency(part), temperature(*part), sequence=sequence))
    ((count, total, p50, p99),) = ask(store, statistics="count,total,p50,p99")
    assert (count, total) == (400, pytest.approx(sum(values)))
    assert p50 == pytest.approx(rank(values, 0.5), rel=RELATIVE_ERROR)
    assert p99 == pytest.approx(rank(values, 0.99), rel=RELATIVE_ERROR)
    ((count, mean, least, greatest),) = ask(store, "temperature_c")
    assert (count, least, greatest) == (400, min(values), max(values))
    assert mean == pytest.approx(sum(values) / 400)


def test_a_row_of_which_nothing_tells_is_merged_all_the_same(
    engine: sa.Engine, store: TelemetryStore
) -> None:
    store.ingest(batch(latency([10.0]), requests(1)))
    with engine.begin() as connection:
        connection.execute(sa.update(tables.device).values(newest_minute=0))
    store.ingest_all(
        [batch(latency([30.0]), requests(1), sequence=2), batch(requests(5), device="other")]
    )
    assert ask(store, statistics="count") == [(2,)]
    assert ask(store, "inference_requests_total", statistics="total") == [(7.0,)]


def test_what_is_stored_of_a_message_is_no_larger_than_the_message(
    engine: sa.Engine, store: TelemetryStore
) -> None:
    far_apart = [ZERO_MAX * 1.01, VALUE_MAX]
    points = [
        latency([value], minute=MINUTE - number) for number in range(200) for value in far_apart
    ]
    sent = batch(*points)
    assert store.ingest(sent)
    sketches = sa.select(metadata.tables["telemetry_minute"].c.sketch)
    with engine.connect() as connection:
        stored_bytes = sum(len(sketch) for sketch in connection.scalars(sketches))
    assert stored_bytes < len(to_msgpack(sent))
    assert ask(store, statistics="count,min,max", since="0") == [(400, far_apart[0], far_apart[1])]


def test_a_fleets_quantile_is_that_of_all_values_together(store: TelemetryStore) -> None:
    generator = random.Random(2)
    everything: dict[str, list[float]] = {"int8": [], "fp32": []}
    for number in range(12):
        variant = "int8" if number % 3 else "fp32"
        spread = generator.uniform(0.1, 1.5)
        values = [generator.lognormvariate(2, spread) for _ in range(generator.randrange(5, 200))]
        everything[variant] += values
        point = latency(values, variant=variant, minute=MINUTE + number % 4)
        store.ingest(batch(point, device=f"pi-{number}"))
    rows = ask(store, statistics="count,p50,p95,p100", group_by="variant")
    assert [row[0] for row in rows] == ["fp32", "int8"]
    for (_, *found), values in zip(rows, (everything["fp32"], everything["int8"]), strict=True):
        assert found[0] == len(values)
        assert found[1] == pytest.approx(rank(values, 0.5), rel=RELATIVE_ERROR)
        assert found[2] == pytest.approx(rank(values, 0.95), rel=RELATIVE_ERROR)
        assert found[3] == max(values)


def test_groups_conditions_and_steps(store: TelemetryStore) -> None:
    for number in range(6):
        points = [
            latency([float(number + 1)], minute=MINUTE + number, zone="a" if number < 3 else "b")
        ]
        store.ingest(batch(*points, device=f"pi-{number % 2}", sequence=number))
    words = {"statistics": "count,max"}
    assert ask(store, **words) == [(6, 6)]
    assert ask(store, group_by="device", **words) == [("pi-0", 3, 5), ("pi-1", 3, 6)]
    assert ask(store, group_by="zone,release", **words) == [
        ("a", "digits:1.0", 3, 3),
        ("b", "digits:1.0", 3, 6),
    ]
    assert ask(store, group_by="minute", where="device=pi-0", **words) == [
        (MINUTE, 1, 1),
        (MINUTE + 2, 1, 3),
        (MINUTE + 4, 1, 5),
    ]
    assert ask(store, where="zone=a,zone=b,device=pi-1", **words) == [(3, 6)]
    assert ask(store, where="zone=c", **words) == []
    assert ask(store, group_by="model", **words) == [("digits", 6, 6)]
    assert ask(store, where="model=digits,zone=a", **words) == [(3, 3)]
    assert ask(store, where="model=faces", **words) == []
    stepped = run(store, parse(LATENCY, now_s=NOW_S, step="2m", **words))
    assert stepped.columns == ("start_s", "count", "max")
    assert stepped.rows == tuple(((MINUTE + 2 * n) * 60, 2, 2 * n + 2) for n in range(3))


def test_time_is_taken_in_by_whole_minutes(store: TelemetryStore) -> None:
    for number in range(4):
        store.ingest(batch(requests(10**number, MINUTE + number), sequence=number))
    at = MINUTE * 60
    for since, until, total in ((at + 61, at + 119, 10), (at + 60, at + 180, 110), (0, at, None)):
        rows = ask(
            store,
            "inference_requests_total",
            statistics="total",
            since=str(since),
            until=str(until),
        )
        assert rows == ([] if total is None else [(total,)])


def test_a_rate_is_what_was_counted_over_the_time_asked_for(
    aging: TelemetryStore, clock: FakeClock
) -> None:
    words = {"metric": "inference_requests_total", "statistics": "rate"}
    aging.ingest(batch(requests(6, MINUTE - 300)))
    aging.ingest(batch(requests(60, variant="a"), sequence=1))
    aging.ingest(batch(requests(120, MINUTE + 1, "b"), sequence=1, device="pi-2"))
    assert ask(aging, **words) == [(0.05,)]  # 180 in an hour
    assert ask(aging, group_by="variant", **words) == [("a", 60 / 3600), ("b", 120 / 3600)]
    assert ask(aging, group_by="device", **words) == [("pi-1", 60 / 3600), ("pi-2", 120 / 3600)]
    assert ask(aging, where="device=pi-2", **words) == [(120 / 3600,)]
    assert ask(aging, group_by="minute", **words) == [(MINUTE, 1), (MINUTE + 1, 2)]
    # The first step began before the time asked for, the last one goes on.
    cut = {**words, "since": "9m", "step": "5m", "until": str(int(NOW_S - 270))}
    assert ask(aging, **cut) == [(MINUTE * 60, 120 / 240)]
    # The minute that contains the end counts as a whole, as its values do.
    assert ask(aging, since="10m", until=str(int(NOW_S - 500)), **words) == [(1.5,)]
    clock.correct(-465.0)  # now is 15 s into the third minute
    assert ask(aging, since="10m", **words) == [(pytest.approx(180 / 135),)]
    assert ask(aging, since="1d", **words) == [(pytest.approx(186 / (302 * 60 + 15)),)]


def test_a_question_without_statistics_gets_those_that_suit(store: TelemetryStore) -> None:
    store.ingest(batch(latency([1.0]), requests(1), temperature(1)))
    columns = {
        metric: run(store, Query(metric=metric)).columns
        for metric in (LATENCY, "inference_requests_total", "temperature_c")
    }
    assert columns[LATENCY] == ("count", "mean", "p50", "p95", "max")
    assert columns["inference_requests_total"] == ("total", "rate")
    assert run(store, Query(metric="feedback_accuracy_ratio")).columns == ("count", "mean")
    assert columns["temperature_c"] == ("count", "mean", "min", "max")


def test_senseless_questions_say_why(store: TelemetryStore) -> None:
    store.ingest(batch(latency([1.0]), temperature(1)))
    for wrong in ("latency_ms", "inference_latncy_ms"):
        with pytest.raises(
            UnknownMetricError, match=rf"'{wrong}'; did you mean .*inference_latency"
        ):
            ask(store, wrong)
    with pytest.raises(UnknownMetricError, match=r"'zzz'; `fleet telemetry metrics` lists"):
        ask(store, "zzz")
    # Nothing has failed yet.
    assert ask(store, "inference_failures_total", group_by="code") == []
    with pytest.raises(QueryError, match="counter and has no statistic 'p95'"):
        ask(store, "inference_failures_total", statistics="p95")
    with pytest.raises(QueryError, match="has no attribute 'colour'"):
        ask(store, "inference_failures_total", group_by="colour")
    with pytest.raises(QueryError, match=r"gauge and has no statistic 'p95'; it has count, mean"):
        ask(store, "temperature_c", statistics="p95")
    with pytest.raises(QueryError, match=r"no statistic 'p101'"):
        ask(store, statistics="p101")
    has = "it has device, model, release, variant"
    with pytest.raises(QueryError, match=rf"no attribute 'colour', .*; {has}"):
        ask(store, group_by="colour")
    with pytest.raises(QueryError, match="no attribute 'minute'"):
        ask(store, where="minute=3")


def test_a_point_that_cannot_be_is_refused_and_the_rest_counted(store: TelemetryStore) -> None:
    broken = HistogramPoint(metric=LATENCY, minute=MINUTE, attributes={}, blob=b"noise")
    assert store.ingest(batch(broken, requests(1), dropped=3))
    assert store.ingest(batch(requests(1), sequence=1, dropped=2))
    newest_s = (MINUTE + 1) * 60.0
    assert [tuple(device) for device in store.devices()] == [("pi-1", 2, 5, 1, newest_s, None)]
    assert [found[:2] for found in store.metrics()] == [("inference_requests_total", "sum")]


def test_names_too_long_for_an_index_are_refused(store: TelemetryStore) -> None:
    generator = random.Random(4)
    for count in range(9):
        named = {
            f"a{number}": "".join(chr(generator.randrange(0x4E00, 0x9000)) for _ in range(128))
            for number in range(count)
        }
        point = SumPoint(metric="x_total", minute=MINUTE, attributes=named, value=1)
        assert store.ingest(batch(point, sequence=count))
    (device,) = store.devices()
    assert (device.batches, device.refused) == (9, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": ""},
        {"device": "x" * 64},
        {"device": "a\x00"},
        {"boot_id": ""},
        {"boot_id": "b\x00"},
        {"sequence": -1},
        {"sequence": 2**63},
    ],
)
def test_a_batch_without_a_possible_identity_is_refused(
    store: TelemetryStore, changes: dict[str, object]
) -> None:
    with pytest.raises(WireFormatError):
        store.ingest(batch(requests(1), **changes))  # type: ignore[arg-type]  # that is the point
    assert store.devices() == []


def test_events_are_kept_with_their_reasons(store: TelemetryStore) -> None:
    events = tuple(
        Event(at_s=NOW_S + number, kind=kind, reason="because\x00", data={"n": number, "x": None})
        for number, kind in enumerate(("switch", "install", "switch"))
    )
    store.ingest(batch(events=events))
    store.ingest(batch(events=events[:1], device="pi-2"))
    kept = store.events(of("pi-1"))
    assert [found.event.kind for found in kept] == ["switch", "install", "switch"]
    assert (kept[0].event.reason, kept[0].event.data) == ("because", {"n": 0, "x": None})
    assert len(store.events()) == 4
    assert [
        found.event.at_s for found in store.events(of("pi-1", kinds=("switch",), since_s=NOW_S + 1))
    ] == [NOW_S + 2]
    assert [found.event.at_s for found in store.events(of("pi-1", limit=1))] == [NOW_S + 2]


def test_events_are_found_by_what_they_are_about(store: TelemetryStore) -> None:
    about: list[dict[str, object]] = [
        {"release": "digits:1"}, {"release": "faces:1"}, {"model": "faces"}, {},
        {"model": "digits"},
    ]  # fmt: skip
    events = [
        Event(at_s=NOW_S + number, kind="switch", reason="", data=data)
        for number, data in enumerate(about)
    ]
    store.ingest(batch(events=tuple(events)))
    found = store.events(of("pi-1", model="faces"))
    assert [each.event.data for each in found] == [about[1], about[2], about[3]]
    newest = store.events(of("pi-1", model="digits", limit=2))
    assert [each.event.data for each in newest] == [about[3], about[4]], "the bound counts those"


def test_events_of_the_fleet_are_found_by_what_their_data_say(store: TelemetryStore) -> None:
    for number in range(6):
        data = {"variant": f"v{number % 2}", "inputs": {"headroom": 0.5 * number}, "cold": True}
        event = Event(at_s=NOW_S + number, kind="switch", reason="", data=data)
        assert store.ingest(batch(events=(event,), device=f"pi-{number % 3}", sequence=number))

    def at(**asked: Any) -> list[float]:
        return [found.event.at_s - NOW_S for found in store.events(EventQuery(**asked))]

    assert at(where=(("variant", "v1"),)) == [1, 3, 5]
    assert at(where=(("variant", "v1"), ("inputs.headroom", "1.5"))) == [3]
    assert at(where=(("cold", "true"),), limit=2) == [4, 5]
    assert at(where=(("inputs", "1.5"),)) == at(where=(("variant.x", "v1"),)) == []
    assert at(until_s=NOW_S + 2) == [0, 1]
    many = frozenset(f"silent-{number}" for number in range(MAX_NAMED))
    for others in (frozenset[str](), many):
        assert at(devices=others | {"pi-1"}) == [1, 4]
        assert at(devices=others | {"pi-1"}, limit=1) == [4]
        assert at(devices=others) == []


@pytest.mark.parametrize("statistic", ["max", "p100"], ids=["sums", "rows"])
def test_old_telemetry_is_forgotten(
    engine: sa.Engine, aging: TelemetryStore, clock: FakeClock, statistic: str
) -> None:
    old = Event(at_s=MINUTE * 60.0, kind="switch", reason="")
    aging.ingest(batch(latency([1.0]), events=(old,)))
    levels = []
    for days in (0.2, 6, 7, 80, 630):
        age(aging, clock, days)
        query = parse(LATENCY, statistics=f"count,{statistic}", since="95d", now_s=clock.now_s())
        if days < 630:
            answer = run(aging, query)
            assert answer.rows == ((1, 1),)
            levels.append([each.level for each in answer.sources])
        query = replace(query, since_s=0.0)
        assert run(aging, query).rows == ((1, 1),)
    age(aging, clock, 300)
    assert levels == [["day", "hour", "minute"]] * 4
    assert aging.metrics() == []
    assert aging.events() == []
    with engine.connect() as connection:
        for table in ("minute", "hour", "day", "fleet_minute", "fleet_hour", "fleet_day", "batch"):
            name = metadata.tables[f"telemetry_{table}"]
            assert connection.scalar(sa.select(sa.func.count()).select_from(name)) == 0


def test_threads_and_controllers_count_once(engine: sa.Engine, store: TelemetryStore) -> None:
    other = TelemetryStore(engine)
    jobs = [
        (chosen, batch(latency([10.0]), requests(1), sequence=sequence, device=f"pi-{device}"))
        for sequence in range(8)
        for device in range(3)
        for chosen in (store, other)
    ]
    random.Random(3).shuffle(jobs)
    with ThreadPoolExecutor(6) as pool:
        counted = list(pool.map(lambda job: job[0].ingest(job[1]), jobs))
    assert sum(counted) == 24
    assert ask(store, statistics="count,p50", group_by="device") == [
        (f"pi-{device}", 8, 10) for device in range(3)
    ]
    assert ask(store, "inference_requests_total", statistics="total") == [(24,)]


def test_series_are_bounded(engine: sa.Engine, store: TelemetryStore) -> None:
    with engine.begin() as connection:
        rows = [
            {"metric": f"m{n}", "kind": "sum", "release": "", "variant": "", "attributes": "{}"}
            for n in range(MAX_SERIES)
        ]
        connection.execute(sa.insert(metadata.tables["telemetry_series"]), rows)
    known = SumPoint(metric="m7", minute=MINUTE, attributes={}, value=1)
    assert store.ingest(batch(known, requests(1)))
    assert store.devices()[0].refused == 1
    assert ask(store, "m7", statistics="total") == [(1,)]


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("group_by", "step"),
    [
        ("", ""),
        ("variant", ""),
        ("device", "3m"),
        ("minute,variant", ""),
        ("device,release", "1m"),
    ],
)
@pytest.mark.parametrize(
    ("metric", "kind"),
    [(LATENCY, "histogram"), ("temperature_c", "gauge"), ("inference_requests_total", "sum")],
)
def test_the_database_adds_up_what_is_the_same_row_by_row(
    store: TelemetryStore, metric: str, kind: Kind, group_by: str, step: str
) -> None:
    """A quantile beside the others lets every row be read."""
    chance = random.Random(f"{metric}{group_by}")
    for sequence in range(6):
        points: list[Point] = []
        for minute in range(MINUTE, MINUTE + 7):
            values = [chance.uniform(-5.0 if metric != LATENCY else 0.1, 90.0) for _ in range(3)]
            named = {"variant": chance.choice(["int8", "fp32"]), "release": "digits:1.0"}
            if metric == LATENCY:
                points.append(latency(values, minute=minute, variant=named["variant"]))
            elif metric == "temperature_c":
                points.append(
                    GaugePoint(
                        metric=metric, minute=minute, attributes=named, count=3, total=sum(values),
                        least=min(values), greatest=max(values),
                    )
                )  # fmt: skip
            else:
                total = sum(map(abs, values))
                points.append(SumPoint(metric=metric, minute=minute, attributes=named, value=total))
        assert store.ingest(batch(*points, sequence=sequence, device=f"pi-{sequence % 3}"))
    words = STATISTICS[kind]
    query = parse(metric, statistics=",".join(words), group_by=group_by, since="0", step=step,
                  now_s=NOW_S)  # fmt: skip
    found = run(store, query)
    groups = Groups(query, store.series(metric), words)
    with store.snapshot() as snapshot:
        for part in snapshot.rows(Part(MINUTES, 0, 2**31 - 1), groups.series_ids):
            groups.add(part)
    groups.are_of((MINUTE * 60, NOW_S))
    expected = groups.rows(kind)
    assert len(found.rows) == len(expected)
    names = len(found.columns) - len(words)
    for row, other in zip(found.rows, expected, strict=True):
        assert row[:names] == other[:names]
        assert row[names:] == pytest.approx(other[names:], rel=1e-9)


SITES = {"site": {f"pi-{number}": f"site-{number % 3}" for number in range(8)}}


@pytest.fixture
def sites(store: TelemetryStore) -> TelemetryStore:
    """Return a store in which device `pi-N` had the latency N + 1, and one without a label."""
    for number in range(9):
        points = (latency([number + 1.0]), latency([number + 1.0], variant="fp32"), requests(1))
        assert store.ingest(batch(*points, device=f"pi-{number}"))
    return store


@pytest.mark.parametrize("statistic", ["max", "p100"], ids=["sums", "rows"])
def test_devices_are_grouped_by_what_is_known_of_them(
    sites: TelemetryStore, statistic: str
) -> None:
    query = replace(
        parse(LATENCY, statistics=f"count,{statistic}", group_by="site,variant", since="0",
              now_s=NOW_S),
        device_values=SITES,
    )  # fmt: skip
    expected = [
        (site, variant, count, greatest)
        for variant in ("fp32", "int8")
        for site, count, greatest in (
            ("", 1, 9), ("site-0", 3, 7), ("site-1", 3, 8), ("site-2", 2, 6),
        )
    ]  # fmt: skip
    assert sorted(run(sites, query).rows) == sorted(expected)


def test_an_attribute_of_the_metric_hides_a_label_of_that_name(sites: TelemetryStore) -> None:
    query = replace(
        parse(LATENCY, statistics="count", group_by="variant", since="0", now_s=NOW_S),
        device_values={"variant": {"pi-0": "a label"}},
    )
    assert run(sites, query).rows == (("fp32", 9), ("int8", 9))


def test_an_attribute_that_a_device_makes_up_hides_no_label(sites: TelemetryStore) -> None:
    hostile = latency([99.0], site="site-1", device_="x")
    assert sites.ingest(batch(hostile, device="pi-0", sequence=1))
    asked = parse(LATENCY, statistics="max", group_by="site", since="0", now_s=NOW_S)
    rows = run(sites, replace(asked, device_values=SITES)).rows
    assert rows == (("", 9), ("site-0", 99), ("site-1", 8), ("site-2", 6))
    with pytest.raises(QueryError, match="no attribute 'site'"):
        run(sites, replace(asked, where=(("site", "site-1"),), device_values=SITES))


@pytest.mark.parametrize("others", [0, MAX_NAMED])
@pytest.mark.parametrize("statistic", ["max", "p100"], ids=["sums", "rows"])
def test_only_chosen_devices_count(sites: TelemetryStore, statistic: str, others: int) -> None:
    """However many they are: a statement names some, and others are left out afterwards."""
    silent = frozenset(f"silent-{number}" for number in range(others))
    asked = parse(LATENCY, statistics=f"count,{statistic}", since="0", now_s=NOW_S)
    for chosen, rows in (
        (silent | {"pi-1", "pi-4"}, ((4, 5),)),
        (silent | {"pi-0"}, ((2, 1),)),
        (silent, ()),
        (None, ((18, 9),)),
    ):
        assert run(sites, replace(asked, devices=chosen)).rows == rows
    both = replace(asked, devices=silent | {"pi-1", "pi-4"}, where=(("device", "pi-4"),))
    assert run(sites, both).rows == ((2, 5),)
    none = replace(asked, devices=silent | {"pi-1"}, where=(("device", "pi-4"),))
    assert run(sites, none).rows == ()


def test_what_is_neither_an_attribute_nor_a_label_is_refused(sites: TelemetryStore) -> None:
    asked = parse(LATENCY, since="0", now_s=NOW_S)
    with pytest.raises(QueryError, match="no device has it as a label"):
        run(sites, replace(asked, group_by=("sight",), device_values=SITES))
    with pytest.raises(QueryError, match="no attribute 'site'") as caught:
        run(sites, replace(asked, where=(("site", "site-1"),), device_values=SITES))
    assert "--selector" in caught.value.remedy


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_two_releases_are_compared_over_devices(store: TelemetryStore, statistic: str) -> None:
    for number in range(12):
        for release, factor in (("digits:1", 1.0), ("digits:2", 1.5)):
            values = [factor * (10 + number % 4)] * (5 + number % 3)
            assert store.ingest(
                batch(latency(values, release=release), device=f"pi-{number}",
                      sequence=int(factor * 2)),
            )  # fmt: skip
    query = parse(LATENCY, statistics=statistic, since="0", now_s=NOW_S)
    found = compare.run(store, query, "release", "digits:1", "digits:2")
    assert (found.first.devices, found.second.devices) == (12, 12)
    assert found.first.values == found.second.values == 72
    assert found.result.is_told
    assert found.result.difference == pytest.approx(0.5 * found.result.first, rel=0.05)
    by_site = replace(query, device_values={"site": {f"pi-{n}": "ab"[n % 2] for n in range(12)}})
    assert compare.run(store, by_site, "site", "a", "b").first.devices == 6
    sites = replace(query, device_values={"site": {f"pi-{n}": str(n // 2) for n in range(10)}})
    in_sites = compare.run(store, sites, "release", "digits:1", "digits:2", "site")
    assert in_sites.first == found.first, "the unit changes no value"
    assert in_sites.result.has_interval, "five sites, and two devices that are in none"
    few = compare.run(store, by_site, "release", "digits:1", "digits:2", "site").result
    assert few.lacks == "fewer than 5 groups by site have values"
    with pytest.raises(QueryError, match="no device has a label 'floor'"):
        compare.run(store, by_site, "release", "digits:1", "digits:2", "floor")
    with pytest.raises(QueryError, match="no values with release=digits:3"):
        compare.run(store, query, "release", "digits:1", "digits:3")
    with pytest.raises(QueryError, match="'max' of two groups cannot be compared"):
        compare.run(store, replace(query, statistics=("max",)), "release", "digits:1", "digits:2")
    with pytest.raises(QueryError, match="cannot be parted by device: a device is one obs"):
        compare.run(store, query, "device", "pi-1", "pi-2")


def test_counts_that_devices_made_up_do_not_overflow(store: TelemetryStore) -> None:
    for number in range(3):
        point = GaugePoint(metric="load", minute=MINUTE, attributes={}, count=2**40, total=1.0,
                           least=0.0, greatest=1.0)  # fmt: skip
        for sequence in range(5):
            assert store.ingest(batch(point, device=f"pi-{number}", sequence=sequence))
    assert ask(store, "load", statistics="count") == [(15 * 2**40,)]


def test_a_handful_of_devices_does_not_keep_new_series_out(
    engine: sa.Engine,
    aging: TelemetryStore,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = aging
    first = COMMON_SERIES // USUAL.device_series
    with engine.begin() as connection:  # what these have brought, without the time that it takes
        every = range(COMMON_SERIES)
        named = {"kind": "sum", "release": "", "variant": "", "attributes": "{}"}
        rows = [named | {"metric": f"m{n}", "brought_by": f"evil-{n % first}"} for n in every]
        connection.execute(sa.insert(tables.series), rows)
    for number in range(first, first + 5):
        points = [
            SumPoint(metric=f"m{number}_{n}", minute=MINUTE, attributes={}, value=1)
            for n in range(RESERVED_OF_DEVICE + 50)
        ]
        assert store.ingest(batch(*points, device=f"evil-{number}"))
    assert store.ingest(batch(latency([1.0]), requests(1)))
    losses = {found.device: found.refused for found in store.devices()}
    assert losses == {f"evil-{number}": 50 for number in range(first, first + 5)} | {"pi-1": 0}
    assert ask(store, "inference_requests_total", statistics="total") == [(1,)]
    (told,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "most came from evil-0 (2000), evil-1 (2000), evil-2 (2000): decommission" in told
    (need,) = store.needs()
    assert "series of telemetry" in need
    assert "evil" not in need
    age(store, clock, 1000)
    assert store.needs() == []


def test_one_device_cannot_use_up_the_series_of_the_fleet(store: TelemetryStore) -> None:
    many = USUAL.device_series + 100
    points = [
        SumPoint(metric=f"m{number}", minute=MINUTE, attributes={}, value=1)
        for number in range(many)
    ]
    assert store.ingest(batch(*points))
    assert store.ingest(batch(requests(1), sequence=1))
    (hostile,) = store.devices()
    assert hostile.refused == 100, "what has labels counts for another series"
    shared = SumPoint(metric="m7", minute=MINUTE, attributes={}, value=1)
    assert store.ingest(batch(shared, requests(1), device="pi-2"))
    assert store.devices()[1].refused == 0
    assert ask(store, "m7", statistics="total") == [(2,)]


def test_no_device_changes_the_kind_of_a_metric(
    engine: sa.Engine, aging: TelemetryStore, clock: FakeClock
) -> None:
    store, metrics = aging, ("temperature_c", "n_total")
    hostile = [msgspec.structs.replace(latency([7.0]), metric=metric) for metric in metrics]
    # What an earlier version took: a kind that comes first in many an order, and is the oldest.
    with engine.begin() as connection:
        old = {"kind": "histogram", "release": "", "variant": "", "attributes": "{}"}
        connection.execute(sa.insert(tables.series), {"metric": "temperature_c", **old})
    honest = SumPoint(metric="n_total", minute=MINUTE, attributes={}, value=5)
    assert store.ingest(batch(honest, temperature(50.0)))
    for sequence in range(2):
        sent = batch(*hostile, honest, temperature(60.0), device="pi-2", sequence=sequence)
        assert store.ingest(sent)

    assert ask(store, "temperature_c") == [(3, pytest.approx(170 / 3), 50, 60)]
    assert ask(store, "n_total", statistics="total") == [(15,)]
    assert [one[:2] for one in store.metrics()] == [("n_total", "sum"), ("temperature_c", "gauge")]
    assert {one.kind for one in all_series(store).values()} == {"sum", "gauge"}
    assert [one.refused for one in store.devices()] == [0, 4]
    (told,) = store.events(of("pi-2", kinds=("points",)))
    assert told.event.reason == (
        "points are refused: `temperature_c` is a gauge, and this is a histogram"
    )
    assert told.event.data == {"metric": "temperature_c"}
    clock.advance(3601.0)
    assert store.ingest(batch(hostile[1], device="pi-2", sequence=9))
    assert [one.event.reason for one in store.events(of("pi-2"))][1:] == [
        "points are refused: `n_total` is a counter, and this is a histogram"
    ]


def test_series_of_which_nothing_is_left_are_deleted_and_may_come_again(
    engine: sa.Engine, aging: TelemetryStore, clock: FakeClock
) -> None:
    store, other = aging, TelemetryStore(engine, clock)
    for number, chosen in enumerate((store, other)):
        chosen.ingest(batch(requests(1), temperature(50), sequence=number))
    age(store, clock, 500)
    minute = int(clock.now_s() // 60)
    store.ingest(batch(latency([2.0], minute=minute), sequence=2))
    age(store, clock, 500)
    assert [found[:2] for found in store.metrics()] == [(LATENCY, "histogram")]
    # SQLite gives the identifier of a deleted series to the next one.
    minute = int(clock.now_s() // 60) - 1
    later = [
        SumPoint(metric=f"n{number}", minute=minute, attributes={}, value=5) for number in range(3)
    ]
    assert store.ingest(batch(*later, sequence=3))
    assert other.ingest(batch(requests(1, minute=minute), sequence=4))

    def total(metric: str) -> tuple[tuple[object, ...], ...]:
        return run(store, parse(metric, statistics="total", now_s=clock.now_s())).rows

    assert total("inference_requests_total") == ((1,),)
    assert [total(point.metric) for point in later] == [((5,),)] * 3


def test_a_device_whose_clock_is_ahead_leaves_nothing_for_ever(
    aging: TelemetryStore, clock: FakeClock
) -> None:
    store = aging
    day_s, year = 86_400.0, 365 * 24 * 60
    known = int((NOW_S + day_s) // 60)
    ahead = Event(at_s=NOW_S + year * 60.0, kind="switch", reason="")
    assert store.ingest(
        batch(
            requests(1, minute=known),
            requests(1, minute=known + 1),
            requests(1, minute=2**31 - 1),
            events=(ahead,),
        )
    )
    assert store.devices()[0].refused == 2
    assert [found.event.at_s for found in store.events()] == [NOW_S + day_s]
    age(store, clock, 1000)
    assert store.events() == []
    assert store.metrics() == []


def test_a_failed_ingest_counts_nothing(engine: sa.Engine, store: TelemetryStore) -> None:
    event = Event(at_s=NOW_S, kind="switch", reason="")
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE telemetry_event RENAME TO away"))
    with pytest.raises(TelemetryStoreError, match=r"telemetry database failed: .*; check that"):
        store.ingest(batch(requests(1), events=(event,)))
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO telemetry_event"))
    assert store.ingest(batch(requests(1), events=(event,)))
    assert ask(store, "inference_requests_total", statistics="total") == [(1,)]


def test_a_database_without_tables_is_our_error(empty_database_url: str) -> None:
    engine = sa.create_engine(empty_database_url)
    bare = TelemetryStore(engine)
    with pytest.raises(TelemetryStoreError):
        bare.ingest(batch(requests(1)))
    for question in (bare.events, bare.devices, bare.metrics):
        with pytest.raises(TelemetryStoreError):
            question()
    engine.dispose()
