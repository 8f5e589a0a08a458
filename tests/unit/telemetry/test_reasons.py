"""Reasons as text: the same for `fleet why` and `fleet-agent why`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from telemetry.reasons import reason_lines

DATA = {
    "from": None,
    "to": "small",
    "release": "digits:1",
    "inputs": {"headroom": 0.91, "memory_available_bytes": 64 * 2**20, "battery_ratio": None},
    "verdicts": {"best": "slower: 40 against 5 ms", "big": "benched: it crashed"},
}


def test_a_decision_is_told_with_what_it_was_made_from() -> None:
    lines = reason_lines(0.0, "switch", "hot", DATA)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d switch nothing -> small: hot$", lines[0])
    assert lines[1:] == [
        "    release: digits:1",
        "    inputs: headroom=0.91  memory_available_bytes=64.0 MiB",
        "    not best: slower: 40 against 5 ms",
        "    not big: benched: it crashed",
    ]


def test_bytes_by_source_are_told_as_sizes() -> None:
    lines = reason_lines(0.0, "install", "succeeded", {"bytes_by_source": {"mqtt": 2**20, "x": 5}})
    assert lines[1:] == ["    bytes_by_source: mqtt 1.0 MiB, x 5 B"]


@pytest.mark.parametrize(
    "data",
    [
        {"bytes_by_source": {"a": {"b": [1]}, "c": "d"}},
        {},
        {"inputs": 3, "verdicts": "none"},
        {"inputs": {}},
        {"from": "a"},
        {"x": [1, None], "y": ""},
    ],
)
def test_any_event_can_be_told(data: dict[str, Any]) -> None:
    lines = reason_lines(1.5, "k", "r", data)
    assert lines[0].endswith(" k: r")


def test_control_characters_are_shown_and_not_obeyed() -> None:
    data = {"verdicts": {"a\x1b[2J": "b\nc"}, "code": "\r"}
    told = "".join(reason_lines(1.5, "k", "\x07", data))
    assert told.isprintable()
