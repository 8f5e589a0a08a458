"""Reasons as text: the same for `fleet why` and `fleet-agent why`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.install.events import INSTALL, RESTORE
from telemetry.reasons import KINDS, reason_lines

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


def test_a_constraint_that_was_removed_is_told() -> None:
    data = {
        "before": {"objective.deadline_ms": 100.0, "low_memory_bytes": 0, "kind": "rules"},
        "changed": {"objective.deadline_ms": None, "low_memory_bytes": 2**20, "kind": "adaptive"},
        "revision": 7,
    }
    changed, revision = reason_lines(0.0, "policy", "another", data)[1:]
    assert changed == (
        "    changed: kind=adaptive (was rules)  low_memory_bytes=1.0 MiB (was 0 B)  "
        "objective.deadline_ms=none (was 100)"
    )
    assert revision == "    revision: 7"


def test_an_older_agent_tells_only_what_is_new() -> None:
    lines = reason_lines(0.0, "policy", "another", {"changed": {"dwell_s": 7.0}})
    assert lines[1:] == ["    changed: dwell_s=7"]


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


def told_kinds() -> Iterator[str]:
    """Yield the kinds that the agent's code names where it records an event."""
    for path in (Path(__file__).parents[3] / "agent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            named = [word.value for word in node.keywords if word.arg == "kind"]
            first = node.args[:1] if node.func.attr in {"event", "tell"} else []
            for value in first or (named if node.func.attr == "met" else []):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_every_kind_that_the_agent_tells_is_known() -> None:
    found = set(told_kinds())
    assert {"switch", "worker", "connection", "hook"} <= found
    assert found <= set(KINDS)
    assert {INSTALL, RESTORE} <= set(KINDS)
    assert list(KINDS) == sorted(KINDS)
