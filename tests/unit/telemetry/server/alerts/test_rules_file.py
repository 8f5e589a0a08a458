"""The rules of alerts as a person writes them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.errors import AlertRuleError
from telemetry.server.alerts.rules import Absence, BurnRate, Change, Threshold
from telemetry.server.alerts.rules_file import (
    MAX_RULES,
    changed_keys,
    checked_rule,
    checked_rules,
    read_rules,
)

HOT: dict[str, Any] = {
    "name": "hot", "kind": "threshold", "metric": "temperature_c", "stat": "max", "above": 85,
}  # fmt: skip
SLOW: dict[str, Any] = {
    "name": "slow", "kind": "change", "metric": "inference_latency_ms", "stat": "p95", "above": 1.5,
}  # fmt: skip
RIGHT: dict[str, Any] = {
    "name": "right", "kind": "threshold", "metric": "feedback_accuracy_ratio", "stat": "mean",
}  # fmt: skip
GONE: dict[str, Any] = {"name": "gone", "kind": "absence", "metric": "battery_ratio"}
BURN: dict[str, Any] = {
    "name": "burn", "kind": "burn_rate", "errors": "inference_failures_total",
    "total": "inference_requests_total", "objective": 0.999,
}  # fmt: skip


def test_each_kind_has_defaults() -> None:
    hot, slow, gone, burn = checked_rules({"alert": [HOT, SLOW, GONE, BURN]})
    assert isinstance(hot, Threshold)
    assert (hot.window_s, hot.for_s, hot.limits.above, hot.limits.clear) == (300, 0, 85, None)
    assert isinstance(slow, Change)
    assert (slow.offset_s, slow.compare, slow.least_count) == (300, "ratio", 200)
    assert isinstance(gone, Absence)
    assert (gone.window_s, gone.lookback_s, gone.names) == (900, 86_400, ())
    assert isinstance(burn, BurnRate)
    assert (burn.long_s, burn.short_s, burn.limits.above) == (3600, 300, 14.4)
    assert burn.limits.clear == pytest.approx(12.96)
    assert burn.least_count == 348


@pytest.mark.parametrize(
    ("stat", "least"),
    [("p50", 20), ("p90", 100), ("p99.9", 10_000), ("p5", 200), ("p100", 7), ("max", 7)],
)
def test_a_change_of_a_quantile_needs_ten_values_beyond_it(stat: str, least: int) -> None:
    rule = checked_rule(SLOW | {"stat": stat, "min_count": 7})
    assert isinstance(rule, Change)
    assert rule.least_count == least


def test_a_rule_about_devices_has_them_as_groups() -> None:
    rule = checked_rule({"name": "silent", "kind": "absence", "window": "5m"})
    assert (rule.names, rule.limits.above, rule.heard_s) == (("device",), 300.0, 300.0)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (HOT | {"windw": "5m"}, "alert hot: there is no setting windw (did you mean window?)"),
        (HOT | {"kind": "treshold"}, "alert hot: kind is not 'treshold'"),
        ({"name": "hot"}, "alert hot: kind is missing"),
        (HOT | {"name": "Too Hot"}, "alert number 1: name is not 1 to 63"),
        (HOT | {"name": 7}, "alert number 1: name must be a text, not a whole number"),
        ({**HOT, "above": None}, "alert hot: it needs a bound: give above or below"),
        ({**HOT, "below": 3}, "alert hot: it has two bounds, above and below: give one"),
        (HOT | {"above": "85"}, "above must be a number or nothing, not a text"),
        (HOT | {"above": float("nan")}, "above is not a number: nan"),
        (HOT | {"clear": 90}, "clear = 90 is above the bound 85"),
        (HOT | {"window": "5"}, "window: '5' has no unit"),
        (HOT | {"window": "10s"}, "window is not within 1 minute to 31 days"),
        (HOT | {"window": ""}, "window is empty"),
        (HOT | {"for": "8d"}, "for is longer than 7 days"),
        (HOT | {"for": "soon"}, "for: 'soon' is not a duration"),
        (HOT | {"severity": "fatal"}, "severity must be one of info, warning, critical"),
        (HOT | {"stat": "p95"}, "stat: temperature_c is a gauge and has no statistic 'p95'"),
        (HOT | {"metric": "own_metric", "stat": "median"}, "stat is not a statistic: 'median'"),
        (HOT | {"metric": "Temp"}, "metric is not the name of a metric: 'Temp'"),
        (HOT | {"by": ["minute"]}, "by has the word minute"),
        (HOT | {"by": ["device", "device"]}, "by has a word twice"),
        (HOT | {"by": ["a"] * 9}, "by has more than 8 words"),
        (HOT | {"where": ["device"]}, "where: not a condition"),
        (HOT | {"where": ["a=1,b=2"]}, "where has a comma"),
        (HOT | {"summary": "a\nb"}, "summary is not one line"),
        (HOT | {"min_count": -1}, "min_count is negative"),
        (SLOW | {"offset": "1m"}, "offset is shorter than window"),
        ({**SLOW, "above": None, "below": 0}, "below = 0: no value is below it, the least is 0"),
        (SLOW | {"above": -1}, "above = -1: every value is above it, the least is 0"),
        (SLOW | {"metric": "temperature_c", "stat": "mean"}, 'write compare = "difference"'),
        (SLOW | {"kind": "threshold", "above": 2e19}, "above = 2e+19: no value is above it"),
        (SLOW | {"kind": "threshold", "clear": -1}, "clear = -1: no value ends the alert"),
        (RIGHT | {"above": 1}, "above = 1: no value is above it, the greatest is 1"),
        (RIGHT | {"below": 1.1}, "below = 1.1: every value is below it, the greatest is 1"),
        (RIGHT | {"below": 0.5, "clear": 2}, "clear = 2: no value ends the alert"),
        (RIGHT | {"kind": "change", "compare": "difference", "below": -1}, "the least is -1"),
        (RIGHT | {"stat": "count", "below": 0}, "below = 0: no value is below it, the least is 0"),
        (
            RIGHT | {"stat": "count", "below": 5, "min_count": 10},
            "no value is below it, the least is 10, by min_count",
        ),
        (
            GONE | {"by": ["device"], "window": "30m", "lookback": "2h", "for": "90m"},
            "for is not shorter than lookback less window",
        ),
        (BURN | {"errors": "inference_requests_total"}, "errors and total are the same metric"),
        (GONE | {"lookback": "10m"}, "lookback is not longer than window"),
        ({"name": "s", "kind": "absence", "by": ["site"]}, "by and where need a metric"),
        (BURN | {"objective": 1.0}, "objective is not between 0 and 1"),
        (BURN | {"objective": 0.9}, "factor is too great: even if all goes wrong, it is 10"),
        (BURN | {"short": "2h"}, "long is not longer than short"),
        (BURN | {"errors": "temperature_c", "clear": 20.0}, "clear is not within 0 to factor"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(AlertRuleError) as caught:
        checked_rule(table)
    assert fault in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "table",
    [
        HOT | {"above": -20, "clear": -25},
        HOT | {"kind": "change", "compare": "difference", "above": 20},
        HOT | {"metric": "own_metric", "stat": "mean", "above": -5},
        RIGHT | {"stat": "count", "above": 0},
        RIGHT | {"metric": "inference_requests_total", "stat": "count", "below": 1},
        GONE | {"window": "30m", "lookback": "2h", "for": "90m"},
    ],
)
def test_a_bound_that_decides_something_is_taken(table: dict[str, Any]) -> None:
    assert checked_rule(table).name == table["name"]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "there is no table [[alert]]"),
        ({"alerts": [HOT]}, "there is no setting alerts (did you mean alert?)"),
        ({"alert": HOT}, "alert is not a list of tables"),
        ({"alert": [HOT, HOT]}, "the name hot is given twice"),
        ({"alert": [HOT] * (MAX_RULES + 1)}, "201 alerts are more than the limit of 200"),
    ],
)
def test_what_cannot_be_in_a_file(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(AlertRuleError) as caught:
        checked_rules(values)
    assert fault in caught.value.message


def test_a_file_that_is_no_toml_or_too_long() -> None:
    for data in (b"[[alert", b"\xff", b" " * 600_000):
        with pytest.raises(AlertRuleError):
            read_rules(data)
    assert checked_rules(read_rules(b"alert = []")) == ()


def test_the_keys_that_differ_are_named() -> None:
    hot = checked_rule(HOT)
    assert changed_keys(hot, checked_rule(HOT | {"above": 90, "summary": "x"})) == [
        "summary", "above",
    ]  # fmt: skip
    assert changed_keys(hot, checked_rule(HOT)) == []
    assert "kind" in changed_keys(hot, checked_rule(GONE | {"name": "hot"}))


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
        st.sampled_from(["threshold", "absence", "5m", "\ud800", "\0", 10**400]),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
KEYS = st.one_of(st.sampled_from([*HOT, *BURN, "for", "where", "by", "clear"]), st.text(max_size=5))


@given(st.sampled_from([HOT, SLOW, GONE, BURN]), st.dictionaries(KEYS, JUNK, max_size=4))
def test_nothing_but_our_own_fault_comes_out(table: dict[str, Any], junk: dict[str, Any]) -> None:
    with contextlib.suppress(AlertRuleError):
        rule = checked_rule(table | junk)
        assert rule.limits.for_s >= 0  # what was accepted can be used


@given(st.dictionaries(KEYS, JUNK, max_size=4))
def test_a_fault_can_be_written_anywhere(junk: dict[str, Any]) -> None:
    text = ""
    try:
        checked_rules({"alert": [HOT | junk], **junk})
    except AlertRuleError as exc:
        text = str(exc)
    assert all(line.isprintable() for line in text.splitlines())
    assert text.encode().decode() == text
