"""Questions as people write them: read exactly, or refused with what to write instead."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.errors import QueryError
from telemetry.server.query import Query, parse

NOW_S = 1_700_000_000.0


def test_a_whole_question() -> None:
    assert parse(
        " latency_ms ",
        now_s=NOW_S,
        statistics="p50, p99.9,count",
        group_by="variant,device",
        where="variant=int8,variant=fp32, device = pi-7",
        since="2h",
        until="30m",
        step="5m",
    ) == Query(
        metric="latency_ms",
        statistics=("p50", "p99.9", "count"),
        group_by=("variant", "device"),
        where=(("variant", "int8"), ("variant", "fp32"), ("device", "pi-7")),
        since_s=NOW_S - 7200,
        until_s=NOW_S - 1800,
        step_s=300,
    )


def test_the_least_question_is_about_the_last_hour() -> None:
    assert parse("m", now_s=NOW_S) == Query(metric="m", since_s=NOW_S - 3600, until_s=NOW_S)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", NOW_S - 90),
        ("1w", NOW_S - 604_800),
        ("999999999w", 0.0),
        ("0", 0.0),
        ("0001-01-01", 0.0),
        ("1600000000.5", 1_600_000_000.5),
        ("2023-01-31T12:00", 1_675_166_400.0),
        ("2023-01-31T12:00:00+02:00", 1_675_159_200.0),
        ("2023-01-31", 1_675_123_200.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse("m", now_s=NOW_S, since=text).since_s == seconds


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"statistics": "p50,,p95"}, "not a list of statistics: 'p50,,p95'; write a list"),
        ({"group_by": ",".join("ab" * 40)}, "not a list of groups"),
        ({"group_by": "x" * 2000}, "not a list of groups"),
        ({"group_by": "a,b,a"}, "the same word is given twice"),
        ({"where": "variant"}, "not a condition: 'variant'; write name=value"),
        ({"where": "=int8"}, "not a condition"),
        ({"since": "yesterday"}, "not a time: 'yesterday'; write 1h"),
        ({"since": ""}, "not a time"),
        ({"since": "1"}, "'1' has no unit; write it as 90s"),
        ({"since": "128849018821"}, "not a time: 1.28849e+11 s since 1970; write seconds within"),
        ({"until": "9999-12-31T23:59"}, "write seconds within 0 to 128849018820"),
        ({"since": "٣"}, "not a time"),
        ({"step": "999999w"}, "is longer than all telemetry"),
        ({"since": "1h", "until": "2h"}, "before its beginning"),
        ({"step": "x"}, "'x' is not a duration; write it as 90s"),
        ({"step": "5s"}, "a step of 5 s is not whole minutes"),
        ({"step": "60.5s"}, "is not whole seconds"),
        ({"step": "90s"}, "a step of 90 s is not whole minutes"),
        ({"step": "0m"}, "not whole minutes"),
        ({"step": "1m", "group_by": "minute"}, "cannot have both a step and"),
    ],
)
def test_a_senseless_word_is_named(words: dict[str, str], fault: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse("m", now_s=NOW_S, **words)
    assert fault in str(caught.value)


@given(st.text(max_size=40), st.sampled_from(["statistics", "group_by", "where", "since", "step"]))
def test_noise_never_raises_anything_but_our_error(text: str, word: str) -> None:
    try:
        query = parse("m", now_s=NOW_S, **{word: text})
    except QueryError:
        return
    assert math.isfinite(query.since_s)
