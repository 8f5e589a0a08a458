"""Prometheus' two text formats, as bytes; in `tests/contract` Prometheus' parsers read them."""

from __future__ import annotations

import math

import pytest

from agent.serve.http.exposition import (
    Family,
    Sample,
    asks_for_open_metrics,
    exposed,
    histogram,
    reading,
)

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def test_a_counter_has_its_whole_name_only_where_the_format_wants_it() -> None:
    counter = Family("edgefleet_runs", "counter", "Runs.", (Sample(3, {"model": "a"}),))
    assert exposed([counter], open_metrics=False) == (
        b"# HELP edgefleet_runs_total Runs.\n# TYPE edgefleet_runs_total counter\n"
        b'edgefleet_runs_total{model="a"} 3\n'
    )
    assert exposed([counter], open_metrics=True) == (
        b"# HELP edgefleet_runs Runs.\n# TYPE edgefleet_runs counter\n"
        b'edgefleet_runs_total{model="a"} 3\n# EOF\n'
    )


def test_the_buckets_of_a_histogram_add_up() -> None:
    lines = list(histogram((0.5, 1.0), (2, 0, 1), 4.5, {}))
    assert [(line.ending, dict(line.labels), line.value) for line in lines] == [
        ("_bucket", {"le": "0.5"}, 2),
        ("_bucket", {"le": "1.0"}, 2),
        ("_bucket", {"le": "+Inf"}, 3),
        ("_count", {}, 3),
        ("_sum", {}, 4.5),
    ]


def test_what_is_not_known_is_left_out() -> None:
    assert exposed([reading("battery_ratio", "Charge.", None)], open_metrics=False) == b""


def test_a_label_cannot_forge_a_line() -> None:
    sample = Sample(1, {"model": 'a"} 1\nforged{x="\\'})
    text = exposed([Family("x", "gauge", "X.", (sample,))], open_metrics=False)
    assert text.splitlines()[2:] == [b'x{model="a\\"} 1\\nforged{x=\\"\\\\"} 1']


@pytest.mark.parametrize(
    ("value", "told"), [(math.inf, b"+Inf"), (-math.inf, b"-Inf"), (math.nan, b"NaN"), (2, b"2.0")]
)
def test_numbers_are_written_as_the_formats_read_them(value: float, told: bytes) -> None:
    text = exposed([reading("x", "X.", value)], open_metrics=False)
    assert text.splitlines()[-1] == b"x " + told


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=high", False),
    ],
)
def test_a_client_gets_open_metrics_where_it_asks_for_that(accept: str, wanted: bool) -> None:
    assert asks_for_open_metrics(accept) is wanted
