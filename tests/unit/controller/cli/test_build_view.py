"""What a build shows while it goes on."""

from __future__ import annotations

import pytest

from controller.cli.build_view import noted, once_a_minute


def test_a_log_gets_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 10.0, 59.0, 60.0, 60.0, 100.0, 121.0, 121.0])
    tell = once_a_minute(lambda: next(times))
    for line in ("one", "two", "three", "four", "five"):
        tell(line)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["three", "five"]
    assert not captured.out


def test_a_warning_is_no_note() -> None:
    assert noted("evaluation data: the gate") == "note: evaluation data: the gate"
    assert noted("warning: other processes") == "warning: other processes"
