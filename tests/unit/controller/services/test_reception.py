"""How long the controller has heard its devices."""

from __future__ import annotations

from controller.services.reception import BACK_AFTER_S, STOPPED_AFTER_S, Reception
from tests.simulators.clock import FakeClock


def test_without_a_connection_nobody_is_heard() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    clock.advance(100)
    assert (reception.heard_s(), reception.settled_s()) == (0.0, 0.0)


def test_a_connection_that_was_there_from_the_start_counts_at_once() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    reception.note(up=True)
    clock.advance(5)
    reception.note(up=True)
    clock.advance(5)
    assert (reception.heard_s(), reception.settled_s()) == (10.0, 10.0)


def test_a_connection_that_was_lost_counts_when_the_devices_are_back() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    for _ in range(3):
        reception.note(up=True)
        clock.advance(BACK_AFTER_S)
        reception.note(up=False)
        clock.advance(1)
    reception.note(up=True)
    clock.advance(BACK_AFTER_S)
    assert (reception.heard_s(), reception.settled_s()) == (BACK_AFTER_S, 0.0)
    clock.advance(7)
    assert reception.settled_s() == 7.0


def test_a_wall_clock_that_is_set_tells_nothing_until_devices_are_heard_anew() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    reception.note(up=True)
    clock.advance(1000)
    assert reception.heard_s() == 1000.0
    for by_s in (3600.0, -3600.0):
        clock.correct(by_s)
        assert (reception.heard_s(), reception.settled_s()) == (0.0, 1000.0)
    clock.correct(1.0)
    clock.advance(10)
    assert reception.heard_s() == 10.0


def test_a_process_that_did_not_run_has_heard_nobody() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    reception.note(up=True)
    for _ in range(100):
        reception.beat()
        clock.advance(STOPPED_AFTER_S)
    assert reception.settled_s() == 100 * STOPPED_AFTER_S, "only late"
    for first in (reception.settled_s, reception.heard_s, reception.beat):
        clock.advance(STOPPED_AFTER_S + 1.0)
        first()
        assert (reception.heard_s(), reception.settled_s()) == (0.0, 0.0)
        for _ in range(7):
            clock.advance(STOPPED_AFTER_S)
            reception.beat()
        assert reception.settled_s() == 7 * STOPPED_AFTER_S - BACK_AFTER_S


def test_a_process_that_stopped_without_a_connection_has_none_afterwards() -> None:
    clock = FakeClock()
    reception = Reception(clock)
    reception.beat()
    clock.advance(10 * STOPPED_AFTER_S)
    assert reception.heard_s() == 0.0
    reception.note(up=True)
    clock.advance(1.0)
    assert (reception.heard_s(), reception.settled_s()) == (1.0, 0.0)
