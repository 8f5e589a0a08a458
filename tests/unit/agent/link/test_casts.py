"""Where a device hears casts: on its one connection, or beside it if it has a certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.link.connection import Link
from agent.link.enrolment import Login
from agent.link.identity import Account, ShownCertificate
from agent.link.outage import Outage
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.transport import MemoryHub, MemoryTransport
from wire.enrolment import enrol_username
from wire.errors import TransportError
from wire.topics import all_down, cast
from wire.transport import Received

CASTS = [cast(f"{number:032x}") for number in range(3)]
PASSWORD = "of the account for enrolment"
BY_PASSWORD = Account(client_id="dev-1:x", username="dev-1", password="p")
SHOWN = ShownCertificate(cert_file=Path("c"), key_file=Path("k"), port=1)
BY_CERTIFICATE = Account(client_id="dev-1:x", username="dev-1", password=None, certificate=SHOWN)


class World:
    """A link whose connections are seen."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.logins: list[Login] = []
        self.made: list[MemoryTransport] = []
        self.is_broken = False
        clock = FakeClock()
        outage = Outage("b:1", Recorder(clock), clock)
        self.link = Link("dev-1", "boot", outage, lambda: PASSWORD)

    def connect(self, login: Login) -> MemoryTransport:
        if self.is_broken and login.certificate is None:
            raise TransportError("a file cannot be read")
        self.logins.append(login)
        self.made.append(self.hub.connect())
        return self.made[-1]

    def heard(self) -> list[Received]:
        items = iter(lambda: self.link.next(0.0), None)
        return [item for item in items if isinstance(item, Received)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_device_with_a_password_hears_casts_on_its_one_connection(world: World) -> None:
    world.link.open(world.connect, BY_PASSWORD)
    world.link.subscribe(CASTS[0])
    assert len(world.made) == 1
    world.hub.deliver(Received(CASTS[0], b"piece"))
    assert [received.payload for received in world.heard()] == [b"piece"]


def test_a_device_with_a_certificate_hears_casts_beside_it(world: World) -> None:
    world.link.open(world.connect, BY_CERTIFICATE)
    assert len(world.made) == 1, "no more than it needs"
    for topic in CASTS[:2]:
        world.link.subscribe(topic)
    assert len(world.made) == 2
    second = world.logins[1]
    assert (second.username, second.password) == (enrol_username(PASSWORD), PASSWORD)
    assert (second.certificate, second.will) == (None, None)
    assert not world.made[0].wants(CASTS[0])
    assert not world.made[1].wants(all_down("dev-1"))
    world.hub.deliver(Received(CASTS[1], b"piece"))
    assert [received.payload for received in world.heard()] == [b"piece"]


def test_the_last_cast_ends_the_connection_beside(world: World) -> None:
    world.link.open(world.connect, BY_CERTIFICATE)
    for topic in CASTS[:2]:
        world.link.subscribe(topic)
    world.link.unsubscribe(CASTS[0])
    second = world.made[1]
    assert (second.closed, second.wants(CASTS[0])) == (False, False)
    world.link.unsubscribe(CASTS[1])
    assert world.made[1].closed
    world.link.subscribe(CASTS[2])
    assert len(world.made) == 3


def test_casts_are_heard_on_after_a_new_certificate(world: World) -> None:
    world.link.open(world.connect, BY_CERTIFICATE)
    world.link.subscribe(CASTS[0])
    world.link.open(world.connect, BY_CERTIFICATE)
    assert world.made[1].closed
    world.hub.deliver(Received(CASTS[0], b"piece"))
    assert [received.payload for received in world.heard()] == [b"piece"]


def test_a_cast_that_cannot_be_heard_stops_nothing(world: World) -> None:
    world.link.open(world.connect, BY_CERTIFICATE)
    world.is_broken = True
    world.link.subscribe(CASTS[0])
    world.link.unsubscribe(CASTS[0])
    assert world.link.is_connected()
    world.link.close()
