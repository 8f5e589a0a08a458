from __future__ import annotations

import time

import pytest

from controller.cli.errors import ArgumentError
from controller.cli.questions import (
    checked,
    other_conditions,
    span_s,
    time_asked,
    title_of,
    words_of,
)
from controller.query_schemas import TelemetryQuestion

NOW_S = 1_764_000_000.0


def test_the_api_is_asked_for_what_was_typed() -> None:
    typed = TelemetryQuestion(
        metric="m_ms", where=["a=1", "a=2"], since=" 90m", until="1769860800", step="300s"
    )
    asked = TelemetryQuestion(
        metric="m_ms", where=["a=1", "a=2"], since="1h30m", until="1769860800", step="5m"
    )
    assert checked(typed) == asked


def test_a_moment_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert time_asked("2026-01-31T13:00", "--since") == "1769860800"
        assert time_asked("2026-01-31T12:00Z", "--since") == "1769860800"
        assert time_asked("1769860800", "--since") == "1769860800"
        assert time_asked(" 90m ", "--since") == "1h30m"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["yesterday", "12", "2026-13-01", "-1h", "", "9999-99", "1h-2h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        time_asked(text, "--since")
    assert str(caught.value).startswith("--since: ")
    assert caught.value.remedy


def test_the_range_of_a_query() -> None:
    asked = TelemetryQuestion(metric="m", since="2h", until="30m")
    assert span_s(asked, NOW_S) == (NOW_S - 7200, NOW_S - 1800)
    assert span_s(TelemetryQuestion(metric="m", since="1763999000"), NOW_S) == (
        1_763_999_000.0, NOW_S,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "model", "found"),
    [
        (None, None, ["a=1", "model=x"]),
        (["b=2"], None, ["model=x", "b=2"]),
        (None, "y", ["a=1", "model=y"]),
        (["b=2"], "y", ["b=2", "model=y"]),
    ],
)
def test_conditions_take_the_place_of_those_saved(
    where: list[str] | None, model: str | None, found: list[str]
) -> None:
    assert other_conditions(["a=1", "model=x"], where, model) == found


def test_a_query_in_words() -> None:
    asked = TelemetryQuestion(
        metric="m_ms", by="site,variant", where=["model=x"], selector="site=berlin", since="2h",
        until="30m", step="5m",
    )  # fmt: skip
    assert title_of(asked, ["p50", "p95"]) == (
        "p50, p95 of m_ms by site, variant where model=x, site=berlin, the last 2h, until 30m ago, "
        "step 5m"
    )
    assert words_of(" a , b") == ["a", "b"]
    assert words_of("  ") == []
