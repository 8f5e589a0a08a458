"""What `fleet rollout check` says of a fleet."""

from __future__ import annotations

from typing import Any

import pytest

from controller.cli.preflight import show_preflight
from controller.rollout_plan_schemas import PreflightReport, RefusingDevices


def report(**changes: Any) -> PreflightReport:
    counts = dict.fromkeys(("takes", "runs", "offline", "refuses", "unknown", "shut_out"), 0)
    values: dict[str, Any] = {"release": "digits:1", "selector": "", **counts, **changes}
    return PreflightReport(**values)


def said(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    show_preflight(report(**changes))
    return capsys.readouterr().out.splitlines()


def test_a_fleet_that_can_take_it_is_told_in_four_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, takes=9, runs=1, offline=2) == [
        "release       digits:1",
        "devices       all devices",
        "will take it  9, of which 1 runs it already and 2 are offline now",
        "will refuse   0",
    ]


def test_refusals_are_told_by_their_reasons_and_unknown_devices_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = said(
        capsys,
        takes=1,
        refuses=9,
        unknown=2,
        shut_out=3,
        refusing=[
            RefusingDevices(reason="no variant fits", count=5, devices=["a-1", "a-2"]),
            RefusingDevices(reason="a \x1b[2J trick", count=1, devices=["b-1"]),
        ],
        unknown_devices=["c-1", "c-2"],
    )
    assert lines[4:] == [
        "unknown       2, not greeted since enrolment",
        "shut out      3, quarantined or decommissioned",
        "",
        "5 devices refuse: no variant fits",
        "  a-1, a-2 and 3 more",
        "",
        "1 device refuses: a \ufffd[2J trick",
        "  b-1",
        "",
        "3 more refuse, for other reasons",
        "",
        "2 devices unknown:",
        "  c-1, c-2",
    ]


def test_a_selector_that_nobody_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, selector="id=x")[-1] == "no enrolled device matches"
