"""`fleet-agent why`: reasons are read from disk when no agent answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.app.spooling import SPOOL_FILE
from agent.cli.main import main
from telemetry.device.spool import Spool
from telemetry.device.spool_reader import stored_events
from telemetry.errors import SpoolError
from wire.clock import SystemClock
from wire.telemetry import Event

CLOCK = SystemClock()
DATA = {
    "from": None,
    "to": "small",
    "release": "digits:1",
    "inputs": {"headroom": 0.91, "memory_available_bytes": 64 * 2**20, "battery_ratio": None},
    "verdicts": {"best": "slower: 40 against 5 ms", "big": "benched: it crashed"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a configuration of an agent that does not run."""
    path = tmp_path / "agent.toml"
    path.write_text('device = "dev-1"\nstate_dir = "."\nprofile = "p"\ntrust = "t"\n')
    return path


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Store an event from a minute ago and one from three hours ago."""
    spool = Spool(
        tmp_path / SPOOL_FILE, device="dev-1", boot_id="b", limit_bytes=2**20, clock=CLOCK
    )
    for age_s, reason in ((3 * 3600, "early"), (60, "late")):
        event = Event(at_s=CLOCK.now_s() - age_s, kind="switch", reason=reason, data=DATA)
        spool.append((), (event,))
    yield spool
    spool.close()


def test_without_an_agent_what_is_stored_is_told_and_that_is_said(
    config: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.close()
    assert main(["why", "--config", str(config)]) == 0
    told = capsys.readouterr()
    assert told.err == "fleet-agent: no agent answers; these are the events that it stored\n"
    assert "nothing -> small: late" in told.out
    assert "early" not in told.out
    assert main(["why", "--config", str(config), "--since", "1d", "--json"]) == 0
    assert [e["reason"] for e in json.loads(capsys.readouterr().out)] == ["early", "late"]


def test_what_an_agent_that_hangs_stored_is_told_too(
    config: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    # The file is open in another process, with its newest part in the write-ahead log.
    assert main(["why", "--config", str(config)]) == 0
    assert "late" in capsys.readouterr().out
    assert [event.reason for event in spool.events()] == ["early", "late"]


def test_reading_changes_nothing(spool: Spool, tmp_path: Path) -> None:
    spool.close()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert len(stored_events(tmp_path / SPOOL_FILE, (), 0, 10)) == 2
    assert (tmp_path / SPOOL_FILE).read_bytes() == before[SPOOL_FILE]


def test_where_nothing_is_stored_one_line_says_so(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "--config", str(config)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "no agent answers" in told.err
    assert "no such file" in told.err
    assert not (tmp_path / SPOOL_FILE).exists()


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    for content in (b"", b"no database" * 1000):
        path = tmp_path / "spool.db"
        path.write_bytes(content)
        with pytest.raises(SpoolError, match="cannot be read"):
            stored_events(path, (), 0, 10)


def test_one_kind_of_events_can_be_asked_for(
    config: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.append((), (Event(at_s=CLOCK.now_s(), kind="install", reason="done", data={}),))
    ask = ["why", "--config", str(config), "--json"]
    for kinds, reasons in (
        (["--kind", "install"], ["done"]),
        (["--kind", "switch"], ["late"]),
        (["--kind", "switch", "--kind", "install"], ["late", "done"]),
    ):
        assert main([*ask, *kinds]) == 0
        assert [e["reason"] for e in json.loads(capsys.readouterr().out)] == reasons
    assert main(["why", "--config", str(config), "--kind", "drift"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "fleet-agent: nothing of kind drift happened within 1h"
    assert main([*ask, "--kind", "swich"]) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert refusal.startswith("fleet-agent: --kind: there is no kind of events 'swich'; kinds are ")


def test_nothing_within_the_time_is_said(
    config: Path, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "--config", str(config), "--since", "1ms"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1] == "fleet-agent: nothing happened within 1ms"


@pytest.mark.parametrize("since", ["", "h", "-1h", "1 h", "yesterday", "\u0661h", "9" * 99])
def test_a_time_that_is_none_is_one_line(
    config: Path, since: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "--config", str(config), f"--since={since}"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.endswith("write it as 90s, 15m, 1h30m or 2d\n")


@pytest.mark.parametrize(
    "since", ["90s", "15m", "1h", "2d", "0s", "999999999d", "1.5h", "1h30m", "1w"]
)
def test_times_as_people_write_them(config: Path, spool: Spool, since: str) -> None:
    assert main(["why", "--config", str(config), "--since", since]) == 0
