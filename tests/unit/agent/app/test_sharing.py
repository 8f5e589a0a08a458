"""When a device serves others of its site, and what the controller is told."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.sharing import METRIC, Sharing, make_sharing
from agent.errors import PeersError
from agent.install.conditions import tired
from agent.install.slots import Slots
from agent.log import Log
from agent.peers.settings import Address, PeerSettings
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from tests.simulators.packages import TRUST
from wire.health import HealthSnapshot

COOL = HealthSnapshot(at_s=0.0, headroom=0.3)


class Server:
    """What serves, if its address can be used."""

    def __init__(self) -> None:
        self.fault = ""
        self.address: Address | None = None

    def start(self) -> None:
        if self.fault:
            raise PeersError(self.fault, remedy="set another")
        self.address = Address("0.0.0.0", 8471)  # noqa: S104 - as the settings say

    def stop(self) -> None:
        self.address = None


class Rig:
    """What shares, with a server that the test rules."""

    def __init__(self, listen: str = "0.0.0.0:8471") -> None:
        self.server, self.heard, self.lines = Server(), Heard([], []), io.StringIO()
        log = Log(FakeClock(), self.lines)
        self.sharing = Sharing(PeerSettings(listen=listen), self.server, log, self.heard)

    def url(self) -> str | None:
        return self.sharing.url

    @property
    def reasons(self) -> list[str]:
        return [reason for kind, reason, _ in self.heard.events if kind == "peers"]


def test_the_address_is_found_anew_on_each_connection() -> None:
    rig = Rig()
    assert rig.url() is None
    rig.sharing.connected("192.168.1.20")
    assert rig.url() == "http://192.168.1.20:8471"
    rig.sharing.connected("10.0.0.7")
    assert rig.url() == "http://10.0.0.7:8471"
    assert rig.lines.getvalue().count("listening") == 1
    rig.sharing.stop()
    assert (rig.url(), rig.server.address) == (None, None)


def test_an_address_that_cannot_be_used_yet_is_tried_again() -> None:
    rig = Rig()
    rig.server.fault = "cannot listen: cannot assign requested address"
    for _ in range(3):
        rig.sharing.connected("192.168.1.20")
        assert rig.url() is None
    assert rig.reasons == ["cannot listen: cannot assign requested address; set another"], "once"
    rig.server.fault = ""
    rig.sharing.connected("192.168.1.20")
    assert rig.url() == "http://192.168.1.20:8471"
    rig.server.stop()
    rig.server.fault = "cannot listen: cannot assign requested address"
    rig.sharing.connected("192.168.1.20")
    assert len(rig.reasons) == 2, "it is news again"


def test_a_device_that_knows_no_address_of_its_own_tells_none() -> None:
    rig = Rig()
    rig.sharing.connected("2001:db8::1")
    assert rig.url() is None
    assert rig.reasons == [
        "no address is known that others reach for 0.0.0.0:8471; set peers.address"
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"headroom": None}, ""),
        ({"battery_discharging": False}, ""),
        ({"battery_discharging": True}, "this device runs on its battery"),
        ({"throttled": True}, "this device is too hot"),
        ({"headroom": 1.0}, "this device is too hot"),
    ],
    ids=str,
)
def test_a_device_that_is_hot_or_on_its_battery_is_not_loaded(
    changes: dict[str, object], why: str
) -> None:
    assert tired(msgspec.structs.replace(COOL, **changes)) == why


def made(directory: Path, settings: PeerSettings, heard: Heard) -> Sharing | None:
    clock = FakeClock()
    config = AgentConfig(
        device="cam-1",
        state_dir=directory,
        profile=directory / "p",
        trust=directory / "t",
        peers=settings,
    )
    return make_sharing(
        config,
        TRUST,
        Slots(directory),
        is_coming=lambda _sha256: False,
        health=lambda: COOL,
        log=Log(clock, io.StringIO()),
        recorder=heard,
        clock=clock,
    )


def test_nobody_is_served_unless_the_configuration_says_where(tmp_path: Path) -> None:
    heard = Heard([], [])
    assert made(tmp_path, PeerSettings(), heard) is None
    sharing = made(tmp_path, PeerSettings(listen="127.0.0.1:1"), heard)
    assert sharing is not None
    sharing.connected("127.0.0.1")  # only root may listen there, and nobody does
    sharing.stop()
    assert METRIC not in str(heard)
