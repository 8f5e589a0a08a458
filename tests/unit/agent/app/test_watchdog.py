"""What systemd is told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.app import watchdog
from agent.errors import ConfigError
from tests.simulators.clock import FakeClock


def test_systemd_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        assert watchdog.notify(watchdog.READY)
        assert listener.recv(64) == b"READY=1"


def test_silence_without_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not watchdog.notify(watchdog.READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not watchdog.notify(watchdog.READY)


def test_half_the_time_that_systemd_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog.watchdog_interval_s() == 15.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog.watchdog_interval_s() is None
    monkeypatch.delenv("WATCHDOG_USEC")
    assert watchdog.watchdog_interval_s() is None


def test_a_wait_for_a_worker_is_shorter_than_systemds_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    watchdog.check_start_timeout(600.0)
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    watchdog.check_start_timeout(29.0)
    with pytest.raises(ConfigError, match=r"start_timeout_s is 30, .* after 30 s") as fault:
        watchdog.check_start_timeout(30.0)
    assert "WatchdogSec=" in fault.value.remedy
    monkeypatch.setenv("WATCHDOG_USEC", "10000000")
    watchdog.check_start_timeout(20.0)  # nobody asked for more


def test_systemd_hears_that_the_agent_is_alive_as_often_as_it_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        listener.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        clock = FakeClock()
        alive = watchdog.Watchdog(clock)
        for _ in range(31):
            alive.tick()
            clock.advance(1.0)
        heard = [listener.recv(64) for _ in range(3)]
        assert heard == [b"WATCHDOG=1"] * 3
        with pytest.raises(BlockingIOError):
            listener.recv(64)
