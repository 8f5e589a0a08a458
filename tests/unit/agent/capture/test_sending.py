"""Samples on their way to the controller: after telemetry, in parts, until it has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.capture.budget import Spent
from agent.capture.sending import AT_ONCE, Sending
from agent.capture.store import SampleStore, StoredSample
from agent.link.connection import Link
from agent.link.identity import Account
from agent.link.outage import Outage
from agent.link.resending import FIRST_S, Resending
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.transport import MemoryHub
from wire.capture import PIECE_BYTES, SampleHead
from wire.codec import to_json
from wire.messages import decode_message
from wire.samples import SampleAck, SamplePiece
from wire.topics import up

TOPIC = up("cam-1", "sample")


class Rig:
    """A store with samples and a connection to nobody."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.hub = MemoryHub()
        self.transport = self.hub.connect()
        link = Link("cam-1", "b", Outage("here", Recorder(self.clock), self.clock))
        link.open(
            lambda _login: self.transport, Account(client_id="c", username="u", password=None)
        )
        self.store = SampleStore(directory / "captured", 10**7)
        self.telemetry_is_through = True
        self.refused: list[bytes] = []
        self.sending = Sending(
            "cam-1", store=self.store, link=link, clock=self.clock,
            may_send=lambda: self.telemetry_is_through, refused=self.refused.append,
            resending=Resending(lambda: 0.5),
        )  # fmt: skip

    def add(self, letter: str, size_bytes: int) -> bytes:
        head = SampleHead(
            capture="a" * 32, sample=letter * 32, device="cam-1", model="m", release="m:1",
            variant="best", at_s=1.0, why="share",
        )  # fmt: skip
        sealed = bytes(i % 251 for i in range(size_bytes))
        sample = StoredSample(head=to_json(head), sealed=sealed)
        assert self.store.add(head, sample, Spent())
        return sealed

    def sent(self) -> list[SamplePiece]:
        """Return what was sent since the last time."""
        found = [each for each in self.hub.published if each.topic == TOPIC]
        self.hub.published.clear()
        return [decode_message(each.payload, SamplePiece, packed=True) for each in found]

    def acknowledge(self, piece: SamplePiece, refused: str | None = None) -> None:
        ack = SampleAck(sample=piece.sample, piece=piece.piece)
        if refused is not None:
            ack = SampleAck(sample=piece.sample, piece=piece.piece, refused=refused)
        self.sending.acknowledged(ack)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_large_sample_goes_in_parts_and_is_removed_when_all_are_there(rig: Rig) -> None:
    sealed = rig.add("c", 5 * PIECE_BYTES + 1)
    rig.add("d", 10)
    rig.sending.send()
    pieces = rig.sent()
    assert [piece.piece for piece in pieces] == list(range(AT_ONCE))
    rig.sending.send()
    assert not rig.sent(), "they are on their way"
    for piece in pieces:
        rig.acknowledge(piece)
    pieces += rig.sent()
    assert b"".join(piece.blob for piece in pieces) == sealed
    assert {(piece.pieces, tuple(piece.faults())) for piece in pieces} == {(6, ())}
    for piece in pieces[AT_ONCE:]:
        assert rig.store.has("c" * 32)
        rig.acknowledge(piece)
    assert not rig.store.has("c" * 32)
    assert [piece.sample for piece in rig.sent()] == ["d" * 32]


def test_telemetry_goes_first_and_what_is_lost_goes_again(rig: Rig) -> None:
    rig.add("c", 10)
    rig.telemetry_is_through = False
    rig.sending.send()
    assert not rig.sent()
    rig.telemetry_is_through = True
    rig.transport.denied.add(TOPIC)
    rig.sending.send()
    assert not rig.sent(), "the account is an older one"
    rig.transport.denied.clear()
    rig.sending.send()
    rig.clock.advance(FIRST_S + 1)
    rig.sending.send()
    assert [piece.piece for piece in rig.sent()] == [0, 0]


def test_what_the_controller_refuses_is_removed(rig: Rig) -> None:
    rig.add("c", 3 * PIECE_BYTES)
    rig.sending.send()
    first, *_ = rig.sent()
    rig.acknowledge(first, refused="the capture has ended")
    assert rig.store.is_empty
    assert rig.refused == [first.head]
    rig.acknowledge(first)
    rig.sending.send()
    assert not rig.sent()
