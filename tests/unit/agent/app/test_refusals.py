"""What a device refuses: told at once, one event an hour, and no flood."""

from __future__ import annotations

from agent.app.refusals import MAX_TOLD, WINDOW_S, Refusals
from agent.errors import OlderRevisionError, RefusedError
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from wire.codec import sha256_hex
from wire.errors import SignatureError
from wire.installs import Refusal


class Rig:
    """Refusals of one device."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[Refusal] = []
        self.recorder = Recorder(self.clock)
        self.refusals = Refusals("dev-1", self.told.append, self.recorder, self.clock)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.drain()[1]]


def test_the_controller_is_told_what_was_refused_and_why() -> None:
    rig = Rig()
    rig.refusals.refused(b"an envelope", SignatureError("0 of 1 needed signatures"))
    (refusal,) = rig.told
    assert (refusal.device, refusal.sha256) == ("dev-1", sha256_hex(b"an envelope"))
    assert refusal.error_code == "wire.signature"
    assert "no director that the device trusts" in refusal.detail
    assert rig.refusals.last == refusal.detail
    rig.refusals.accepted()
    assert rig.refusals.last == ""


def test_what_repeats_is_told_each_time_and_is_one_event_an_hour() -> None:
    rig = Rig()
    for _ in range(60):
        rig.refusals.refused(b"an envelope", SignatureError("no"))
        rig.clock.advance(15.0)
    assert len(rig.told) == 60
    assert len(rig.reasons()) == 1
    rig.clock.advance(3600.0)
    rig.refusals.refused(b"an envelope", SignatureError("no"))
    assert len(rig.reasons()) == 1


def test_two_faults_in_a_row_are_both_told() -> None:
    rig = Rig()
    rig.refusals.refused(b"1", RefusedError("for another device"))
    rig.refusals.refused(b"2", OlderRevisionError("older"))
    assert [refusal.error_code for refusal in rig.told] == ["agent.refused", "agent.refused.older"]
    assert rig.reasons() == ["for another device", "older"]


def test_a_broker_that_sends_nonsense_without_end_gets_no_flood() -> None:
    rig = Rig()
    for number in range(1000):
        rig.refusals.refused(b"%d" % number, SignatureError(f"nonsense {number} {'x' * 10_000}"))
    assert len(rig.told) == MAX_TOLD
    assert len(rig.reasons()) < 20
    assert max(len(refusal.detail) for refusal in rig.told) <= 500
    rig.clock.advance(WINDOW_S)
    rig.refusals.refused(b"", SignatureError("no"))
    assert len(rig.told) == MAX_TOLD + 1
