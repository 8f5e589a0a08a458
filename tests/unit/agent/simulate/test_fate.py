from __future__ import annotations

import itertools

import pytest

from agent.install.states import State
from agent.simulate.body import Body
from agent.simulate.course import Course
from agent.simulate.fate import Fate
from tests.simulators.packages import PROFILE, variant
from tests.simulators.packages import package as made
from wire.desired import ModelState
from wire.errors import WireFormatError
from wire.simulation import parse_faults

RELEASE = made("2", [(variant("best"), b"x")]).ref
WANTED = ModelState(name="digits", revision=2, release=RELEASE, rollout="r-1")
DEVICES = 4000


def test_a_share_hits_that_share_of_devices_and_the_same_ones_again() -> None:
    def hit(seed: int) -> list[int]:
        faults = {"no_space": 0.1}
        return [n for n in range(DEVICES) if Fate(seed, n, faults).of_install("digits:2")]

    found = hit(7)

    assert 0.08 < len(found) / DEVICES < 0.12
    assert found == hit(7)
    assert found != hit(8)


def test_devices_are_off_for_the_share_that_was_asked_for() -> None:
    on_s = off_s = 0.0
    for number in range(200):
        for is_on, for_s in itertools.islice(Fate(1, number, {"offline": 0.25}).spells(), 40):
            on_s, off_s = on_s + for_s * is_on, off_s + for_s * (not is_on)

    assert off_s / (on_s + off_s) == pytest.approx(0.25, abs=0.02)
    assert not list(Fate(1, 1, {}).spells())


def states_of(*faults: str) -> tuple[list[State], Course]:
    course = Course(WANTED, RELEASE, frozenset(faults), None)
    seen = []
    while not course.is_over:
        seen.append(course.state)
        course.done()
    return seen, course


def test_an_install_goes_through_the_states_of_the_agent() -> None:
    seen, course = states_of()
    assert seen[0] is State.PREFLIGHT
    assert seen[-1] is State.CONFIRMING
    assert course.active == RELEASE
    assert course.failure is None


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("no_space", State.PREFLIGHT),
        ("damaged", State.VERIFYING),
        ("fails_check", State.PROBING),
        ("crash_after_install", State.CONFIRMING),
    ],
)
def test_a_fault_shows_in_its_state_and_is_undone(fault: str, last: State) -> None:
    seen, course = states_of(fault)
    assert seen[-2:] == [last, State.REVERTING]
    assert course.active is None
    assert course.failure is not None
    assert course.failure.phase is last


def test_a_device_in_hot_surroundings_gets_warmer_and_slower() -> None:
    cool, hot = (Body(Fate(1, 3, faults), PROFILE, 0.0) for faults in ({}, {"hot": 1.0}))
    for body in (cool, hot):
        body.step(600.0)
    assert hot.temperature_c == pytest.approx(cool.temperature_c + 25.0)
    assert hot.latency_ms > cool.latency_ms


@pytest.mark.parametrize("text", ["gremlins=1%", "no_space=101%", "slower=0", "offline", "hot=nan"])
def test_a_fault_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(WireFormatError):
        parse_faults([text])


def test_faults_are_shares_or_factors() -> None:
    assert parse_faults(["no_space=2%", "slower=1.1"]) == {"no_space": 0.02, "slower": 1.1}
