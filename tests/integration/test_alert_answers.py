"""What rules of alerts compare, asked of a real store on both databases; and the past judged."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from telemetry.errors import NotKeptError, QueryError, UnknownMetricError
from telemetry.histogram import ExponentialHistogram
from telemetry.server.alerts.answers import Answers, of_devices, unless_deaf
from telemetry.server.alerts.judging import Group
from telemetry.server.alerts.replay import (
    MAX_STEPS,
    Replayed,
    Span,
    looks_at,
    replay,
    what_is_missed,
)
from telemetry.server.alerts.rules import SILENT_DEVICES, AnyRule
from telemetry.server.alerts.rules_file import checked_rule
from telemetry.server.alerts.silence import Silences
from telemetry.server.past import Past
from telemetry.server.pruning import Retention
from telemetry.server.query import Query, parse, run
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from wire.durations import DAY_S
from wire.telemetry import GaugePoint, HistogramPoint, Point, SumPoint, TelemetryBatch

MINUTE = 28_000_000
NOW_S = MINUTE * 60.0
KEPT = Retention(minutes_s=7 * DAY_S, hours_s=90 * DAY_S, days_s=730 * DAY_S, events_s=7 * DAY_S)


@pytest.fixture
def store(database_url: str) -> Iterator[TelemetryStore]:
    engine = sa.create_engine(database_url)
    yield TelemetryStore(engine)
    engine.dispose()


class Sender:
    """Devices that measure what a test says, each batch once."""

    def __init__(self, store: TelemetryStore) -> None:
        self._store = store
        self._sequence = 0

    def send(self, device: str, *points: Point) -> None:
        self._sequence += 1
        self._store.ingest(
            TelemetryBatch(device=device, boot_id="b", sequence=self._sequence, points=points)
        )

    def gauge(self, metric: str, ago: int, value: float, device: str = "cam-1") -> None:
        """Measure something so many minutes ago."""
        at = {"minute": MINUTE - ago, "attributes": {}, "count": 1}
        self.send(
            device,
            GaugePoint(
                metric=metric,
                total=value,
                least=value,
                greatest=value,
                **at,  # type: ignore[arg-type]  # fields of any type
            ),
        )

    def heat(self, device: str, ago: int, celsius: float) -> None:
        """Measure a temperature so many minutes ago."""
        self.gauge("temperature_c", ago, celsius, device)

    def counted(self, metric: str, ago: int, value: float, variant: str = "int8") -> None:
        """Count something so many minutes ago."""
        point = SumPoint(
            metric=metric, minute=MINUTE - ago, attributes={"variant": variant}, value=value
        )
        self.send("cam-1", point)

    def latency(self, ago: int, *values: float, variant: str = "int8") -> None:
        """Answer requests so many minutes ago."""
        histogram = ExponentialHistogram()
        for value in values:
            histogram.add(value)
        point = HistogramPoint(
            metric="inference_latency_ms", minute=MINUTE - ago,
            attributes={"variant": variant}, blob=histogram.to_bytes(),
        )  # fmt: skip
        self.send("cam-1", point)


@pytest.fixture
def sender(store: TelemetryStore) -> Sender:
    return Sender(store)


def rule(kind: str, **keys: Any) -> AnyRule:
    return checked_rule({"name": "r", "kind": kind, **keys})


def whole(query: Query) -> Query:
    return query


def values(
    store: TelemetryStore, asked: AnyRule, at_s: float = NOW_S, known: Collection[Group] = ()
) -> dict[Group, Any]:
    return dict(Answers(store).of_metric(asked, whole, at_s, known=known).values)


def test_a_threshold_is_what_the_query_says(store: TelemetryStore, sender: Sender) -> None:
    sender.latency(2, *range(1, 101))
    sender.latency(2, *range(1, 11), variant="fp32")
    asked = rule(
        "threshold", metric="inference_latency_ms", stat="p95", by=["variant"], above=50.0
    )  # fmt: skip
    query = parse("inference_latency_ms", now_s=NOW_S, statistics="p95", group_by="variant")
    assert values(store, asked) == {(str(v),): p95 for v, p95 in run(store, query).rows}
    few = rule(
        "threshold", metric="inference_latency_ms", stat="p95", by=["variant"], above=50.0,
        min_count=50,
    )  # fmt: skip
    assert set(values(store, few)) == {("int8",)}
    where = rule(
        "threshold", metric="inference_latency_ms", stat="count", where=["variant=fp32"], above=5
    )
    assert values(store, where) == {(): 10.0}
    assert values(store, where, NOW_S - 3600) == {}


def test_a_change_is_beside_an_earlier_window(store: TelemetryStore, sender: Sender) -> None:
    for device, ago, watts in (
        ("cam-1", 2, 90),
        ("cam-1", 7, 60),
        ("cam-1", 62, 30),
        ("cam-2", 2, 5),
    ):
        sender.gauge("hw.power", ago, watts, device)
    words = {"metric": "hw.power", "stat": "max", "by": ["device"], "above": 1.2}
    assert values(store, rule("change", **words)) == {("cam-1",): 1.5}
    assert values(store, rule("change", offset="1h", **words)) == {("cam-1",): 3.0}
    less = rule("change", compare="difference", **words)
    assert values(store, less) == {("cam-1",): 30.0}


def test_a_week_before_is_compared_by_whole_hours_or_not_at_all(database_url: str) -> None:
    engine, clock = sa.create_engine(database_url), FakeClock(NOW_S - 7 * DAY_S)
    store = TelemetryStore(engine, clock, retention=KEPT)
    for sequence, began in enumerate((MINUTE - 7 * 1440, MINUTE)):
        points = tuple(
            SumPoint(metric="inference_requests_total", minute=began - ago, value=10, attributes={})
            for ago in range(300)
        )
        store.ingest(
            TelemetryBatch(device="cam-1", boot_id="b", sequence=sequence + 1, points=points)
        )
        clock.advance(7 * DAY_S if sequence == 0 else 0.0)
    store.roll_up(math.inf)
    store.prune()
    words = {"metric": "inference_requests_total", "stat": "count", "above": 1.2}
    assert NOW_S % 3600  # the hour in which the minutes begin that are kept is not over
    for length in ("1h", "2h"):
        asked = rule("change", window=length, offset="7d", **words)
        assert values(store, asked) == {(): 1.0}
    with pytest.raises(NotKeptError, match="reaches 1w5m back, where only whole hours are kept"):
        values(store, rule("change", window="5m", offset="7d", **words))
    found = replay(
        rule("threshold", window="5m", **words),
        functools.partial(Answers(store).of_metric, rule("threshold", **words), whole),
        [NOW_S - 7 * DAY_S - 3600, NOW_S], lambda: True,
    )  # fmt: skip
    assert found.note == ("of 1 of 2 looks nothing is known: not all is kept of so long ago")
    silences = Silences(store, {"cam-1": 0.0}, NOW_S - 30 * DAY_S, NOW_S, 600.0)
    assert silences.heard(NOW_S) == {"cam-1": NOW_S}
    with pytest.raises(NotKeptError):
        silences.heard(NOW_S - 8 * DAY_S)
    engine.dispose()


@pytest.mark.parametrize(
    ("before", "now", "ratio"),
    [(0, 90, None), (-10, -20, None), (-1, 60, None), (10, -5, None), (10, 0, 0.0), (10, 5, 0.5)],
)
def test_there_is_a_ratio_of_what_is_not_negative_to_more_than_nothing(
    store: TelemetryStore, sender: Sender, before: float, now: float, ratio: float | None
) -> None:
    sender.gauge("own_level", 7, before)
    sender.gauge("own_level", 2, now)
    words = {"metric": "own_level", "stat": "max", "above": 1.2}
    assert values(store, rule("change", **words)).get(()) == ratio
    assert values(store, rule("change", compare="difference", **words)) == {(): now - before}


def test_a_metric_is_absent_where_it_was_before(store: TelemetryStore, sender: Sender) -> None:
    sender.heat("cam-1", 2, 50)
    sender.heat("cam-2", 30, 50)
    sender.heat("cam-3", 60 * 30, 50)
    asked = rule("absence", metric="temperature_c", by=["device"], window="10m")
    assert values(store, asked) == {("cam-1",): 0.0, ("cam-2",): 1.0}
    assert values(store, rule("absence", metric="temperature_c")) == {(): 0.0}
    assert values(store, rule("absence", metric="battery_ratio")) == {(): 1.0}
    with pytest.raises(UnknownMetricError):
        values(store, rule("absence", metric="batery_ratio"))


def test_what_stops_counting_is_nothing_unless_its_device_is_silent(
    store: TelemetryStore, sender: Sender
) -> None:
    for ago in range(20, 9, -1):
        for device in ("cam-1", "cam-2"):
            sender.send(
                device,
                SumPoint(
                    metric="inference_failures_total", minute=MINUTE - ago, attributes={}, value=60
                ),
            )
    sender.latency(12, 90.0)
    for ago in range(20, 0, -1):
        sender.heat("cam-1", ago, 50)
    words = {"metric": "inference_failures_total", "stat": "rate", "above": 0.1}
    failing = rule("threshold", by=["device"], **words)
    looks = looks_at(NOW_S - 1800, NOW_S)
    with Past.of(store) as past:
        answer = functools.partial(Answers(store, past).of_metric, failing, whole)
        spans = replay(failing, answer, looks, lambda: True).spans
        assert [(span.group, span.resolved_at_s) for span in spans] == [
            (("cam-1",), NOW_S - 180), (("cam-2",), None),
        ]  # fmt: skip
        assert answer(NOW_S - 240).values == {
            ("cam-1",): 0.2, ("cam-2",): 0.2,
        }  # fmt: skip
    both = [("cam-1",), ("cam-2",)]
    assert values(store, failing) == {}  # nothing fires: nothing has to be looked up
    assert values(store, failing, known=both) == {("cam-1",): 0.0}  # cam-2 measures nothing
    few = rule("threshold", by=["device"], min_count=1, **words)
    assert values(store, few, known=both) == {}
    assert values(store, rule("change", offset="10m", **words)) == {(): 0.0}
    # Where 0 is beyond the bound, any group that had values in the last day has it.
    words |= {"above": None, "below": 0.1}
    stopped = rule("threshold", by=["device"], **words)
    assert values(store, stopped) == {("cam-1",): 0.0}
    assert values(store, stopped, NOW_S + 2 * DAY_S) == {}
    assert values(store, rule("threshold", **words)) == {(): 0.0}
    assert values(store, rule("threshold", where=["device=cam-2"], **words)) == {}
    latency = {"metric": "inference_latency_ms", "below": 1.0}
    assert values(store, rule("threshold", stat="count", **latency)) == {(): 0.0}
    assert values(store, rule("threshold", stat="p95", **latency)) == {}
    heat = rule("threshold", metric="temperature_c", stat="count", by=["device"], below=10)
    assert values(store, heat) == {("cam-1",): 5.0}


@pytest.mark.parametrize("stat", ["count", "total", "rate"])
def test_steady_traffic_looks_the_same_at_each_moment_of_a_minute(
    store: TelemetryStore, sender: Sender, stat: str
) -> None:
    for ago in range(10):
        sender.counted("inference_requests_total", ago, 60)
    words = {"metric": "inference_requests_total", "stat": stat}
    changes = [rule("change", window=w, below=1, **words) for w in ("1m", "90s", "3m")]
    amount = rule("threshold", window="3m", below=1, **words)
    tested = looks_at(NOW_S - 61, NOW_S)[-1]  # a whole minute, as `fleet alert test` looks
    for at_s in (tested, *(NOW_S + second for second in (0, 1, 15, 30, 59))):
        assert [values(store, asked, at_s) for asked in changes] == [{(): 1.0}] * 3
        assert values(store, amount, at_s) == {(): 1.0 if stat == "rate" else 180.0}
    # The newest minute is not taken before all devices can have reported it.
    sender.counted("inference_requests_total", 1, 60)
    slow = functools.partial(Answers(store).of_metric, amount, whole, report_every_s=100.0)
    assert values(store, amount, NOW_S + 59) == values(store, amount)
    assert values(store, amount, NOW_S + 60) != values(store, amount)
    assert slow(NOW_S + 99).values == values(store, amount)
    assert slow(NOW_S + 100).values != values(store, amount)


def test_what_needs_no_whole_minute_does_not_wait(store: TelemetryStore, sender: Sender) -> None:
    sender.heat("cam-1", 1, 90)
    sender.heat("cam-1", 0, 95)
    hot = rule("threshold", metric="temperature_c", stat="max", window="1m", above=85)
    assert [values(store, hot, NOW_S + s) for s in (0, 59, 60)] == [
        {(): 90.0}, {(): 90.0}, {(): 95.0},
    ]  # fmt: skip


def test_a_changed_quantile_needs_values_beyond_it(store: TelemetryStore, sender: Sender) -> None:
    words = {"metric": "inference_latency_ms", "by": ["variant"], "window": "1m", "above": 2}
    asked = rule("change", stat="p95", **words)
    for ago in (1, 2):
        sender.latency(ago, *[10.0 / ago] * 199, variant="few")
        sender.latency(ago, *[10.0 / ago] * 200, variant="enough")
    answer = Answers(store).of_metric(asked, whole, NOW_S)
    assert answer.values == {("enough",): pytest.approx(2.0, rel=0.03)}
    assert answer.note == ("too few values in 1 group: p95 is compared where each window has 200")
    assert len(values(store, rule("change", stat="p90", **words))) == 2
    assert values(store, rule("change", stat="p95", min_count=201, **words)) == {}


def test_a_burn_rate_is_the_lower_of_two_windows(store: TelemetryStore, sender: Sender) -> None:
    asked = rule(
        "burn_rate", errors="inference_failures_total", total="inference_requests_total",
        objective=0.99, by=["variant"],
    )  # fmt: skip
    sender.counted("inference_requests_total", 30, 900)
    assert values(store, asked) == {}  # nothing in the short window
    sender.counted("inference_requests_total", 2, 100)
    assert values(store, asked) == {("int8",): 0.0}
    sender.counted("inference_failures_total", 2, 50)
    assert values(store, asked) == {("int8",): pytest.approx(5.0)}  # 50 of 1,000; short: 50 of 100
    sender.counted("inference_failures_total", 30, 450)
    assert values(store, asked) == {("int8",): pytest.approx(50.0)}


def test_few_requests_page_for_more_than_five_failures(
    store: TelemetryStore, sender: Sender
) -> None:
    words = {
        "errors": "inference_failures_total", "total": "inference_requests_total",
        "objective": 0.999,
    }  # fmt: skip
    asked, plain = rule("burn_rate", **words), rule("burn_rate", min_count=0, **words)
    sender.counted("inference_requests_total", 2, 60)
    sender.counted("inference_failures_total", 2, 1)
    assert plain.limits.is_beyond(values(store, plain)[()])
    assert not asked.limits.is_beyond(values(store, asked)[()])
    sender.counted("inference_failures_total", 2, 5)
    assert asked.limits.is_beyond(values(store, asked)[()])
    assert asked.limits.is_clear(0.9 * 14.4)
    assert not asked.limits.is_clear(13.0)


def test_what_cannot_be_asked_is_a_fault(store: TelemetryStore, sender: Sender) -> None:
    sender.heat("cam-1", 2, 50)
    words = {"metric": "temperature_c", "stat": "max", "above": 1}
    with pytest.raises(QueryError, match="has no attribute 'network'"):
        values(store, rule("threshold", by=["network"], **words))
    with pytest.raises(UnknownMetricError):
        values(store, rule("threshold", metric="own_metric", stat="max", above=1))


def test_a_controller_that_heard_nobody_calls_nobody_silent() -> None:
    answer = of_devices({"cam-1": NOW_S - 5000, "cam-2": NOW_S - 10}, NOW_S)
    assert dict(answer.values) == {("cam-1",): 5000.0, ("cam-2",): 10.0}
    deaf = unless_deaf(SILENT_DEVICES, answer, 899.0)
    assert dict(deaf.values) == {("cam-1",): None, ("cam-2",): 10.0}
    assert deaf.is_whole
    assert unless_deaf(SILENT_DEVICES, answer, 900.0) == answer
    back = of_devices({"cam-1": NOW_S + 5000, "cam-2": NOW_S + 1}, NOW_S, 901.0)
    assert dict(back.values) == {("cam-1",): 901.0, ("cam-2",): 0.0}


def test_the_past_is_judged_as_it_would_have_been(store: TelemetryStore, sender: Sender) -> None:
    for ago in range(60, 0, -1):
        sender.heat("cam-1", ago, 90 if 40 <= ago < 50 else 82 if 30 <= ago < 40 else 50)
        sender.heat("cam-2", ago, 95 if ago < 5 else 50)
    asked = rule(
        "threshold", metric="temperature_c", stat="max", window="1m", by=["device"], above=85,
        clear=80, **{"for": "2m"},
    )  # fmt: skip
    answers = Answers(store)

    at = functools.partial(answers.of_metric, asked, whole)

    looks = looks_at(NOW_S - 3600, NOW_S)
    assert (looks.step, len(looks)) == (60, 60)
    found = replay(asked, at, looks, lambda: True)
    # A minute is known when it is over, and then the condition must hold for two more.
    assert found.spans == (
        Span(("cam-1",), NOW_S - 46 * 60, NOW_S - 28 * 60, 90.0),
        Span(("cam-2",), NOW_S - 1 * 60, None, 95.0),
    )
    with pytest.raises(QueryError, match="takes too long"):
        replay(asked, at, looks, iter([True, True, False]).__next__)


def test_a_past_is_read_once_and_judged_as_the_store_says(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sa.create_engine(database_url)
    store = TelemetryStore(engine)
    sender = Sender(store)
    for ago in (125, 124, 5, 4):
        sender.heat("cam-1", ago, 90)
        sender.counted("inference_requests_total", ago, 60)
        sender.latency(ago, *[4.0 if ago > 60 else 8.0] * 200)
    for ago in range(125, 0, -1):
        sender.gauge("battery_ratio", ago, 1.0)
    rules = [
        rule("threshold", metric="temperature_c", stat="max", by=["device"], above=80),
        rule("threshold", metric="inference_requests_total", stat="rate", below=0.5, window="1h"),
        rule(
            "absence",
            metric="inference_requests_total",
            by=["variant"],
            window="30m",
            lookback="2h",
        ),
        rule("change", metric="inference_latency_ms", stat="p95", offset="2h", above=1.1),
    ]
    looks = looks_at(NOW_S - 3600, NOW_S, 240)

    def judged(answers: Answers) -> list[Replayed]:
        return [
            replay(each, functools.partial(answers.of_metric, each, whole), looks, lambda: True)
            for each in rules
        ]

    expected = judged(Answers(store))
    assert all(found.spans for found in expected)
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    with Past.of(store) as past:
        assert judged(Answers(store, past)) == expected
    assert len(statements) < len(rules) * len(looks)  # else it would be some five for each
    monkeypatch.setattr("telemetry.server.past.MOST_IN_BLOCK", 1)
    with Past.of(store) as past:
        assert judged(Answers(store, past)) == expected
    engine.dispose()


def test_what_lies_between_looks_is_said() -> None:
    looks = looks_at(NOW_S - 7 * 86_400 + 30, NOW_S + 30, 3600)
    assert looks[-1] == NOW_S, "what fires now is found"
    assert NOW_S - 7 * 86_400 < looks[0] <= NOW_S - 7 * 86_400 + 3660
    assert what_is_missed(rule("absence", window="1h"), looks.step) == ""
    for words, told in (
        ({"window": "1m"}, "its window of 1m: what lasted less than 1h may be missing"),
        ({"window": "2h", "for": "10m"}, "its for of 10m"),
    ):
        asked = rule("threshold", metric="temperature_c", stat="max", above=85, **words)
        assert told in what_is_missed(asked, looks.step)


def test_looks_are_bounded() -> None:
    for days in (1, 7, 365):
        looks = looks_at(NOW_S - days * 86_400, NOW_S)
        assert len(looks) <= MAX_STEPS
        assert looks.step % 60 == looks.start % 60 == 0
    with pytest.raises(QueryError, match="too short for that time"):
        looks_at(NOW_S - 365 * 86_400, NOW_S, 60)
    with pytest.raises(QueryError, match="not whole minutes"):
        looks_at(NOW_S - 3600, NOW_S, 90)


def test_past_silences_are_those_between_measurements(
    store: TelemetryStore, sender: Sender
) -> None:
    for ago in (*range(60, 40, -1), *range(10, 0, -1)):
        sender.heat("cam-1", ago, 50)
    for ago in range(30, 20, -1):
        sender.heat("new", ago, 50)
    enrolled = {"cam-1": 0.0, "new": NOW_S - 31 * 60, "mute": NOW_S - 60 * 60}
    silences = Silences(store, enrolled, NOW_S - 3600, NOW_S, 600.0)

    def silent_min(ago: int) -> dict[str, float]:
        at_s = NOW_S - ago * 60
        return {device: (at_s - heard_s) / 60 for device, heard_s in silences.heard(at_s).items()}

    assert silent_min(50) == {"cam-1": 0, "mute": 10}
    assert silent_min(40) == {"cam-1": 0, "mute": 20}
    assert silent_min(25) == {"cam-1": 15, "new": 0, "mute": 35}
    assert silent_min(10) == {"cam-1": 30, "new": 10, "mute": 50}
    assert silent_min(9) == {"cam-1": 0, "new": 11, "mute": 51}
    assert silent_min(0) == {"cam-1": 0, "new": 20, "mute": 60}
    found = replay(
        rule("absence", window="5m"),
        lambda at_s, known: of_devices(silences.heard(at_s), at_s),  # noqa: ARG005 - as `Asked`
        looks_at(NOW_S - 3600, NOW_S), lambda: True,
    )  # fmt: skip
    assert [(span.group, span.resolved_at_s is None) for span in found.spans] == [
        (("mute",), True), (("cam-1",), False), (("new",), True),
    ]  # fmt: skip
