"""The renewal: at a random moment of the last part of a life, and only by a signed answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.errors import CertificateError
from agent.link.connection import Link
from agent.link.enrolment import Login
from agent.link.identity import Held, Identity
from agent.link.outage import Outage
from agent.link.renewal import ASK_AGAIN_S, EARLIEST, LATEST, Renewal
from controller.broker.certificates import make_authority
from controller.broker.device_authority import DeviceAuthority
from controller.certificate_settings import SECONDS_PER_DAY, DeviceCertificatesConfig
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import DIRECTOR_KEY, RELEASE_KEY, TRUST
from tests.simulators.transport import MemoryHub, MemoryTransport
from wire.certificates import CERTIFICATE_PAYLOAD_TYPE, CertificateAnswer, CertificateRequest
from wire.codec import sha256_hex, to_json
from wire.errors import FleetError
from wire.messages import decode_message
from wire.topics import up
from wire.transport import Received
from wire.trust.envelope import seal

LIFE_S = 7 * SECONDS_PER_DAY


class World:
    """A device with a certificate, and its controller."""

    def __init__(self, directory: Path) -> None:
        self.hub = MemoryHub()
        self.clock = FakeClock()
        authority = make_authority(directory, "devices")
        config = DeviceCertificatesConfig(
            ca_file=str(directory / "ca.pem"), key_file=str(directory / "ca.key")
        )
        (directory / "ca.pem").write_bytes(authority.certificate)
        (directory / "ca.key").write_bytes(authority.key)
        self.authority = DeviceAuthority(config, self.clock)
        self.link = Link("dev-1", "boot", Outage("b:1", Recorder(self.clock), self.clock))
        self.identity = Identity(directory, "dev-1")
        first = self.authority.sign("dev-1", self.identity.tls_key.request())
        self.identity.confirm(first)
        self.requests: list[CertificateRequest] = []
        self.hub.on(up("dev-1", "certificate_request"), self.hear)
        self.renewal = Renewal("dev-1", self.link, TRUST, self.clock)
        self.link.open(self.connect, self.identity.account)

    @property
    def held(self) -> Held:
        held = self.identity.credentials.certificate
        assert isinstance(held, Held)
        return held

    def connect(self, _login: Login) -> MemoryTransport:
        return self.hub.connect()

    def hear(self, received: Received) -> None:
        self.requests.append(decode_message(received.payload, CertificateRequest))

    def answer(self, **changes: Any) -> CertificateAnswer:
        csr = self.requests[-1].csr
        answer = CertificateAnswer(
            device="dev-1",
            csr_sha256=sha256_hex(csr.encode()),
            certificate=self.authority.sign("dev-1", csr),
        )
        return msgspec.structs.replace(answer, **changes)

    def send(self, answer: CertificateAnswer, key: Any = DIRECTOR_KEY) -> None:
        sealed = seal(to_json(answer), payload_type=CERTIFICATE_PAYLOAD_TYPE, keys=(key,))
        self.renewal.hear(sealed)

    def tick(self) -> bool:
        return self.renewal.tick(self.identity)

    def tick_until_asked(self) -> None:
        while not self.requests:
            self.tick()
            self.clock.advance(600.0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_asks_within_the_last_part_of_the_life_and_not_before(world: World) -> None:
    world.clock.advance(EARLIEST * LIFE_S - 1.0)
    assert not world.tick()
    assert not world.requests
    world.clock.advance((LATEST - EARLIEST) * LIFE_S + 2.0)
    world.tick()
    assert len(world.requests) == 1


def test_devices_that_enrolled_together_do_not_ask_together(world: World) -> None:
    world.clock.advance((EARLIEST + LATEST) / 2 * LIFE_S)
    asked = set()
    for _ in range(64):
        world.requests.clear()
        Renewal("dev-1", world.link, TRUST, world.clock).tick(world.identity)
        asked.add(bool(world.requests))
    assert asked == {True, False}


def test_the_next_certificate_takes_the_place_of_the_present_one(world: World) -> None:
    before = world.held
    world.tick_until_asked()
    world.send(world.answer())
    assert world.tick()
    assert world.held.ends_at_s > before.ends_at_s
    assert not world.tick()
    again = Identity(world.identity.tls_key.cert_file.parent, "dev-1")
    assert again.account == world.identity.account


def test_without_an_answer_it_asks_again_and_not_at_once(world: World) -> None:
    world.tick_until_asked()
    world.requests.clear()
    asked_after_s = 0.0
    while not world.requests:
        world.clock.advance(1.0)
        asked_after_s += 1.0
        world.tick()
    assert asked_after_s <= ASK_AGAIN_S + 1.0
    world.tick()
    assert len(world.requests) == 1


def test_without_a_connection_it_asks_for_nothing(world: World) -> None:
    world.hub.transports[-1].set_up(False)
    world.clock.advance(LIFE_S)
    assert not world.tick()
    assert not world.requests


def test_an_answer_that_the_director_has_not_signed_changes_nothing(world: World) -> None:
    before = world.held
    world.tick_until_asked()
    world.send(world.answer(), RELEASE_KEY)
    with pytest.raises(FleetError):
        world.tick()
    assert world.held == before


def test_an_answer_to_another_request_or_device_changes_nothing(world: World) -> None:
    before = world.held
    world.tick_until_asked()
    world.send(world.answer(csr_sha256="0" * 64))
    assert not world.tick()
    world.send(world.answer(device="dev-2"))
    with pytest.raises(CertificateError):
        world.tick()
    assert world.held == before


def test_a_device_with_a_password_has_nothing_to_renew(world: World) -> None:
    world.identity.confirm()
    world.clock.advance(LIFE_S)
    assert not world.tick()
    assert not world.requests


def test_a_flood_of_answers_is_dropped(world: World) -> None:
    for _ in range(100):
        world.renewal.hear(b"x" * 1000)
    faults = 0
    for _ in range(100):
        try:
            world.tick()
        except FleetError:
            faults += 1
    assert faults <= 4


@pytest.mark.parametrize("years", [10, -10], ids=["ahead", "behind"])
def test_a_clock_that_is_wrong_by_years_makes_a_device_renew_neither_all_the_time_nor_never(
    world: World, years: int
) -> None:
    own = FakeClock()
    own.correct(years * 365 * SECONDS_PER_DAY)
    world.renewal = Renewal("dev-1", world.link, TRUST, own)
    passed_s = answered = 0
    while passed_s < 8 * LIFE_S:
        world.tick()
        if len(world.requests) > answered:
            answered = len(world.requests)
            world.send(world.answer())
        for clock in (own, world.clock):
            clock.advance(ASK_AGAIN_S)
        passed_s += int(ASK_AGAIN_S)
    # The first may be due at once, as the certificate is from before the start.
    assert 8 <= answered <= 8 / EARLIEST + 2


def test_a_clock_that_is_set_right_makes_no_difference_to_when_a_certificate_is_renewed(
    world: World,
) -> None:
    own = FakeClock()
    own.correct(10 * 365 * SECONDS_PER_DAY)
    world.renewal = Renewal("dev-1", world.link, TRUST, own)
    world.tick()
    world.send(world.answer())
    assert world.tick()
    world.tick()
    own.correct(-10 * 365 * SECONDS_PER_DAY)
    for clock in (own, world.clock):
        clock.advance(EARLIEST * LIFE_S - 1.0)
    world.tick()
    assert len(world.requests) == 1
    for clock in (own, world.clock):
        clock.advance((LATEST - EARLIEST) * LIFE_S + 2.0)
    world.tick()
    assert len(world.requests) == 2
