"""Why there is no connection: shown at once, and one event for each reason."""

from __future__ import annotations

from agent.link.outage import MAX_REASONS, REPEAT_S, Outage
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock


class Rig:
    """The outage of one device."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder(self.clock)
        self.outage = Outage("broker:1883", self.recorder, self.clock)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.recorder.drain()[1]]


def test_both_parts_are_shown_until_they_are_over() -> None:
    outage = Rig().outage
    assert outage.reason == ""
    outage.met("connection", "the broker refuses the account")
    outage.met("enrolment", "not enrolled: blocked")
    outage.met("connection", "the broker still refuses the account")
    assert outage.reason == "the broker still refuses the account; not enrolled: blocked"
    outage.over("enrolment")
    assert outage.reason == "the broker still refuses the account"
    outage.over()
    assert outage.reason == ""


def test_a_reason_that_repeats_every_second_is_one_event_an_hour() -> None:
    rig = Rig()
    for _ in range(int(REPEAT_S)):
        rig.outage.met("connection", "no MQTT broker answers")
        rig.outage.over()
        rig.clock.advance(1.0)
    rig.outage.met("connection", "no MQTT broker answers")
    assert rig.reasons() == ["no MQTT broker answers"] * 2


def test_reasons_that_differ_each_time_are_bounded() -> None:
    rig = Rig()
    for number in range(1000):
        rig.outage.met("connection", f"reason {number}")
    assert len(rig.reasons()) == MAX_REASONS
    assert rig.outage.reason == "reason 999"


def test_a_reason_is_one_bounded_line() -> None:
    rig = Rig()
    rig.outage.met("enrolment", "forged\n\x1b[2Jline " + "x" * 10_000)
    assert rig.outage.reason.isprintable()
    assert len(rig.outage.reason) < 1000
