"""The connector: a refused account is enrolled again; one that works is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from agent.errors import StoppedError, StorageError
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.connector import LOST_S, REFUSED_MAX_S, RETRY_MAX_S, Connector
from agent.link.enrolment import Applicant, Enrolment, Login
from agent.link.identity import Account, Held, Identity
from agent.link.outage import Outage
from agent.link.renewal import Renewal
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import PROFILE, TRUST, enrol_reply_to
from tests.simulators.transport import MemoryHub, MemoryTransport
from wire.errors import TransportError
from wire.topics import ENROL_REQUESTS, enrol_reply, up
from wire.transport import ConnectionHandler, MessageHandler, Received

TOKEN = "one-use-token"


class World:
    """A device, its broker's accounts, and a controller that makes them.

    `clock.moment` is called whenever the device waits: a test acts there, and stops the device.
    """

    def __init__(self, directory: Path, *, enrolled: bool = True) -> None:
        self.hub = MemoryHub()
        self.clock = Moments()
        self.recorder = Recorder(self.clock)
        self.outage = Outage("broker:1883", self.recorder, self.clock)
        self.interrupts = Interrupts(self.clock)
        self.link = Link("dev-1", "boot", self.outage)
        self.identity = Identity(directory, "dev-1")
        if enrolled:
            self.identity.confirm()
        self.accounts: set[str | None] = {TOKEN}
        """Passwords that the broker knows."""

        self.makes_accounts = True
        self.answers: list[bool] = []
        """What the controller says to each request; then yes for ever."""

        self.waits_s: float | msgspec.UnsetType = msgspec.UNSET
        """After how long a device that is not accepted is to ask again, because it waits."""

        self.asked_s: list[float] = []
        self.transports: list[MemoryTransport] = []
        self.controller = self.hub.on(ENROL_REQUESTS, self.hear)
        self.is_lost = self.is_away = False
        """Whether nobody answers at the port for certificates; whether nobody answers at all."""

        self.read_identity: Callable[[], Identity | Account] = lambda: self.identity

    def run(self) -> None:
        applicant = Applicant(device="dev-1", profile=PROFILE, labels={}, agent_version="1")
        connector = Connector(
            self.link,
            self.connect,
            self.read_identity,
            lambda identity: Enrolment(
                applicant, identity, self.connect, trust=TRUST, outage=self.outage,
                interrupts=self.interrupts, clock=self.clock,
            ),
            token=lambda: TOKEN,
            renewal=Renewal("dev-1", self.link, TRUST, self.clock),
            interrupts=self.interrupts,
        )  # fmt: skip
        with pytest.raises(StoppedError):
            connector.run()

    def certify(self) -> None:
        """Give the device a certificate; which one does not matter to a hub."""
        held = Held(port=8884, begins_at_s=0.0, ends_at_s=1.0)
        known = self.identity.credentials
        self.identity.credentials = structs.replace(known, enrolled=True, certificate=held)

    def connect(self, login: Login) -> MemoryTransport:
        by_certificate = login.certificate is not None
        if self.is_away and not by_certificate:
            raise TransportError("nobody answers")
        if by_certificate and self.is_lost:
            transport: MemoryTransport = Unheard(self.hub)
        else:
            refused = not by_certificate and login.password not in self.accounts
            transport = self.hub.connect(refused=refused)
        self.transports.append(transport)
        return transport

    def hear(self, received: Received) -> None:
        self.asked_s.append(self.clock.monotonic_s())
        accepted = self.answers.pop(0) if self.answers else True
        if accepted and self.makes_accounts:
            self.accounts.add(self.identity.own_account.password)
        reply = enrol_reply_to(
            received.payload,
            accepted=accepted,
            reason="blocked" if self.waits_s is msgspec.UNSET else "it waits",
            ask_again_s=msgspec.UNSET if accepted else self.waits_s,
        )
        self.controller.publish(enrol_reply("dev-1"), reply)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.drain()[1]]


class Unheard(MemoryTransport):
    """A connection to where nobody answers."""

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        """Hear nothing, neither good nor bad."""


class Moments(FakeClock):
    """Lets something happen whenever somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.moment: Callable[[], None] = lambda: None

    def sleep(self, duration_s: float) -> None:
        super().sleep(duration_s)
        self.moment()


def test_a_new_device_enrols_and_connects(tmp_path: Path) -> None:
    world = World(tmp_path, enrolled=False)

    def moment() -> None:
        if world.link.is_connected():
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert len(world.asked_s) == 1
    assert world.identity.credentials.enrolled


@pytest.mark.parametrize(("wanted_s", "paused_s"), [(40.0, 40.0), (0.0, 5.0), (1e9, 600.0)])
def test_a_device_that_waits_asks_again_when_the_controller_says(
    tmp_path: Path, wanted_s: float, paused_s: float
) -> None:
    world = World(tmp_path, enrolled=False)
    world.answers, world.waits_s = [False, False], wanted_s

    def moment() -> None:
        if world.link.is_connected():
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    first_s, second_s, third_s = world.asked_s
    for pause_s in (second_s - first_s, third_s - second_s):
        assert paused_s / 2 <= pause_s <= paused_s + 1.0
    assert world.reasons()[0] == "not enrolled: it waits"


def test_an_account_that_works_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.accounts.add(world.identity.account.password)

    def moment() -> None:
        if world.clock.monotonic_s() > 100:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert world.asked_s == []
    assert len(world.transports) == 1


def test_a_device_whose_account_the_broker_lost_enrols_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    lost = [False]

    def moment() -> None:
        if not world.link.is_connected():
            return
        if lost[0]:
            world.interrupts.stop()
        elif world.clock.monotonic_s() > 1000:
            lost[0] = True
            world.accounts = {TOKEN}
            world.transports[-1].refuse()

    world.accounts.add(world.identity.account.password)
    world.clock.moment = moment
    world.run()
    assert len(world.asked_s) == 1
    assert world.outage.reason == ""
    assert [transport.closed for transport in world.transports[:-1]] == [True] * 2


def test_a_refused_device_asks_more_and_more_rarely_and_says_so_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.answers = [False] * 20

    def moment() -> None:
        if world.link.is_connected():
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    pauses = [
        after - before for before, after in zip(world.asked_s, world.asked_s[1:], strict=False)
    ]
    assert len(pauses) == 20
    assert pauses[0] < 10
    assert all(RETRY_MAX_S < pause < REFUSED_MAX_S + 5 for pause in pauses[-5:])
    reasons = world.reasons()
    assert len(reasons) < 6, reasons
    assert any("blocked" in reason for reason in reasons)
    assert any("refuses the account" in reason for reason in reasons)


def test_an_account_that_comes_back_ends_the_asking(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.answers = [False] * 1000

    def moment() -> None:
        if len(world.asked_s) == 3 and not world.link.is_connected():
            world.transports[0].accept()
        elif world.link.is_connected() and world.clock.monotonic_s() > world.asked_s[-1] + 1000:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert len(world.asked_s) == 3
    assert not world.transports[0].closed
    assert world.outage.reason == ""


def test_a_broker_that_refuses_although_the_controller_accepts_is_not_stormed(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.makes_accounts = False

    def moment() -> None:
        if world.clock.monotonic_s() > 1000:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert 3 < len(world.asked_s) < 40


def test_an_identity_that_cannot_be_read_is_said_and_read_again(tmp_path: Path) -> None:
    world = World(tmp_path, enrolled=False)
    faults = [StorageError("cannot store the credentials: read-only")] * 2

    def read() -> Identity:
        if faults:
            raise faults.pop()
        return world.identity

    def moment() -> None:
        if world.link.is_connected():
            world.interrupts.stop()

    world.read_identity, world.clock.moment = read, moment
    world.run()
    assert world.reasons() == ["no identity: cannot store the credentials: read-only"]


def test_a_client_certificate_needs_no_enrolment(tmp_path: Path) -> None:
    world = World(tmp_path, enrolled=False)
    world.read_identity = lambda: Account(client_id="dev-1", username="dev-1", password=None)
    world.accounts.add(None)
    world.clock.moment = world.interrupts.stop
    world.run()
    assert world.link.is_connected()
    assert world.asked_s == []


def test_a_device_that_cannot_connect_with_its_certificate_asks_where_it_enrolled(
    tmp_path: Path,
) -> None:
    """The certificate may have ended, or the broker may listen elsewhere by now."""
    world = World(tmp_path, enrolled=False)
    world.certify()
    world.is_lost = True

    def moment() -> None:
        if world.link.is_connected():
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert len(world.asked_s) == 1
    assert world.asked_s[0] >= LOST_S
    assert world.outage.reason == ""


def test_a_device_whose_broker_is_away_keeps_its_certificate_and_blames_the_connection(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, enrolled=False)
    world.certify()
    world.is_lost = world.is_away = True

    def moment() -> None:
        if world.clock.monotonic_s() > 3000:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert world.identity.account.certificate is not None
    assert "not enrolled" not in world.outage.reason
    assert world.asked_s == []


def test_a_device_that_may_connect_but_do_nothing_asks_why(tmp_path: Path) -> None:
    """So Mosquitto treats a device with a certificate that was shut out."""
    world = World(tmp_path, enrolled=False)
    world.certify()
    world.answers = [False]

    def moment() -> None:
        if world.link.is_connected():
            world.transports[0].denied.add(up("dev-1", "presence"))
        if world.asked_s:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert "blocked" in " ".join(world.reasons())


def test_a_device_that_is_lost_and_not_wanted_any_more_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, enrolled=False)
    world.certify()
    world.is_lost = True
    world.answers = [False] * 100

    def moment() -> None:
        if len(world.asked_s) > 1:
            world.interrupts.stop()

    world.clock.moment = moment
    world.run()
    assert "not enrolled again: " in world.outage.reason
    assert "blocked" in world.outage.reason
