"""Fetching on a metered network from real HTTP servers, and by real processes that apply deltas."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.errors import DeferredError, NeedsDeltaError
from agent.install.budget.boot import this_boot
from agent.install.budget.budgets import Budgets
from agent.install.budget.settings import NetworkSettings
from agent.install.fetch.bounded import BoundedSource, bound_writes
from agent.install.fetch.delta import DeltaSource
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.http import HttpSource
from agent.install.fetch.local import LocalSource
from telemetry.device.recorder import Recorder
from tests.integration.test_fetch_sources import NEW, OLD, SIZE, Rig, delta_to_new, old_file
from tests.simulators.range_server import RangeServer
from wire.clock import SystemClock
from wire.codec import sha256_hex


class MeteredRig(Rig):
    """A device on a metered network."""

    def __init__(
        self, directory: Path, http: RangeServer, *, bytes_per_day: int | None = None
    ) -> None:
        super().__init__(directory, http)
        clock = SystemClock()
        network = NetworkSettings(
            name="cellular",
            interfaces=("wwan*",),
            full=bytes_per_day is not None,
            bytes_per_day=bytes_per_day,
        )
        self.set_route("wwan0")
        self.budgets = Budgets(
            (network,),
            None,
            directory,
            directory / "proc",
            Recorder(clock),
            clock,
            this_boot(Path("/proc")),
            lambda at_s: datetime.fromtimestamp(at_s, UTC),
        )
        self.web = HttpSource(self.offers, clock, came=self.budgets.came)
        carriers = [BoundedSource(each, self.budgets) for each in (self.web, self.messages)]
        # Deltas come last: that a whole file may not come must not end the search for one.
        self.fetcher = Fetcher(
            [LocalSource(), *carriers, DeltaSource(self.offers, carriers, clock)],
            clock,
            on_fault=lambda name, _fault: self.faults.append(name),
            bind=lambda errand: bound_writes(errand, self.budgets),
        )

    def set_route(self, interface: str) -> None:
        (self.directory / "proc/net").mkdir(parents=True, exist_ok=True)
        line = f"{interface} 00000000 0 0003 0 0 0 00000000 0 0 0\n"
        (self.directory / "proc/net/route").write_text(line)

    @property
    def used_bytes(self) -> int:
        return int(self.budgets.status()[0]["day_bytes"])


@pytest.fixture
def http() -> Iterator[RangeServer]:
    with RangeServer().running() as server:
        server.add(NEW)
        yield server


def test_by_a_metered_network_a_delta_comes_and_no_whole_file(
    tmp_path: Path, http: RangeServer
) -> None:
    rig = MeteredRig(tmp_path, http)
    delta = delta_to_new(rig, OLD)
    http.add(rig.chunks.blobs[delta.sha256])
    rig.ways[delta.sha256] = rig.ways[sha256_hex(NEW)]
    assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
    assert rig.came == {"delta": len(NEW)}
    assert http.asked == []
    assert rig.faults == []


def test_without_a_delta_nothing_comes_until_another_network_is_there(
    tmp_path: Path, http: RangeServer
) -> None:
    rig = MeteredRig(tmp_path, http)
    rig.link(NEW)
    with pytest.raises(NeedsDeltaError, match="cellular brings deltas only"):
        rig.fetch(NEW)
    assert (rig.came, http.asked, rig.chunks.sent) == ({}, [], [])
    assert rig.budgets.deferral() is not None


def test_a_download_ends_in_its_middle_and_keeps_its_chunks(
    tmp_path: Path, http: RangeServer
) -> None:
    rig = MeteredRig(tmp_path, http, bytes_per_day=3 * SIZE)
    rig.link(NEW)
    with pytest.raises(DeferredError, match="cellular has used"):
        rig.fetch(NEW)
    kept_bytes = rig.came["http"]
    assert 2 * SIZE <= kept_bytes < len(NEW)
    assert 3 * SIZE <= rig.used_bytes <= len(NEW)
    rig.budgets.is_allowed = lambda: True
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"http": len(NEW)}, "only the rest came"
    assert http.asked[-1][1] == f"bytes={kept_bytes}-{len(NEW) - 1}"
    assert rig.chunks.sent == []


def test_what_a_wrong_server_sends_is_counted_too(tmp_path: Path, http: RangeServer) -> None:
    rig = MeteredRig(tmp_path, http, bytes_per_day=100 * SIZE)
    rig.link(NEW)
    http.manner = "other bytes"
    rig.chunks.add(NEW)
    rig.fetch(NEW)
    assert rig.came == {"mqtt": len(NEW)}
    assert rig.used_bytes > 0


def test_a_delta_that_does_not_come_lets_the_install_wait_and_not_fail(
    tmp_path: Path, http: RangeServer
) -> None:
    rig = MeteredRig(tmp_path, http)
    delta_to_new(rig, OLD, damaged=True)
    with pytest.raises(NeedsDeltaError):
        rig.fetch(NEW, holdings=old_file(rig))
    assert rig.faults == ["delta"]
