"""Turns to send: no faster than the rate, fair by device, and nothing for those that have left."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.peers.pace import LATE_S, Pace
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RATE = 1000


def always() -> bool:
    return True


def _is_last(present: list[int], number: int) -> bool:
    return present[0] == number


class Crowd:
    """Devices that wait in threads for turns of a pace whose clock stands still."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.clock = FakeClock()
        self.pace = Pace(RATE, self.clock)
        self._threads = threads
        self.turns: list[str] = []
        self._waiting = threading.Semaphore(0)

    def wait(
        self, device: str, size_bytes: int = RATE * 3600, is_present: Callable[[], bool] = always
    ) -> Future[bool]:
        """Begin to wait; return when it waits."""
        asked = threading.Event()

        def seen() -> bool:
            asked.set()
            return is_present()

        def waited() -> bool:
            if not self.pace.turn(device, size_bytes, seen):
                return False
            self.turns.append(device)
            return True

        future = self._threads.submit(waited)
        assert asked.wait(PATIENCE_S)
        return future

    def let_an_hour_pass(self, turns: int) -> None:
        """Let one turn of an hour be over, and wait until so many have been taken in all."""
        self.clock.advance(3600)
        self.pace.look_again()
        until(lambda: len(self.turns) >= turns, f"{turns} turns")
        assert len(self.turns) == turns


@contextmanager
def a_crowd() -> Iterator[Crowd]:
    with ThreadPoolExecutor(16) as threads:
        crowd = Crowd(threads)
        try:
            yield crowd
        finally:
            crowd.pace.end()


@given(claims=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1))
def test_no_more_is_sent_than_the_rate_allows(claims: list[tuple[int, float]]) -> None:
    clock = FakeClock()
    pace = Pace(RATE * 1000, clock)
    before_bytes, first_s = 0, clock.monotonic_s()
    for size_bytes, pause_s in claims:
        earliest_s = first_s + before_bytes / (RATE * 1000)
        if clock.monotonic_s() < earliest_s:
            clock.advance(earliest_s - clock.monotonic_s() + 1e-6)
        assert pace.turn("dev-1", size_bytes, always)
        before_bytes += size_bytes
        clock.advance(pause_s)


def test_a_turn_waits_until_the_one_before_is_over() -> None:
    with a_crowd() as crowd:
        crowd.wait("dev-1")
        until(lambda: crowd.turns == ["dev-1"])
        crowd.wait("dev-2")
        crowd.clock.advance(3599)
        crowd.pace.look_again()
        assert crowd.turns == ["dev-1"]
        crowd.let_an_hour_pass(2)


def test_time_in_which_nothing_was_sent_is_not_saved_up() -> None:
    with a_crowd() as crowd:
        crowd.clock.advance(10 * 3600)
        first = crowd.wait("dev-1")
        assert first.result(PATIENCE_S)
        second = crowd.wait("dev-1")
        crowd.clock.advance(3600 - 2 * LATE_S)
        crowd.pace.look_again()
        assert not second.done()


def test_who_connects_again_and_again_gets_the_share_of_one_device() -> None:
    with a_crowd() as crowd:
        assert crowd.wait("dev-0").result(PATIENCE_S)
        present, left = [0], []
        for number in range(8):
            present[0] = number
            crowd.pace.look_again()
            left.append(crowd.wait("hostile", is_present=partial(_is_last, present, number)))
        crowd.wait("honest")
        crowd.let_an_hour_pass(2)
        crowd.let_an_hour_pass(3)
        assert sorted(crowd.turns[1:]) == ["honest", "hostile"]
        assert [each.result(PATIENCE_S) for each in left] == [False] * 7 + [True]


def test_who_leaves_gives_its_turn_back() -> None:
    with a_crowd() as crowd:
        assert crowd.wait("dev-0").result(PATIENCE_S)
        present = [True]
        gone = crowd.wait("dev-1", is_present=lambda: present[0])
        crowd.wait("dev-2")
        present[0] = False
        crowd.pace.look_again()
        assert not gone.result(PATIENCE_S)
        crowd.let_an_hour_pass(2)
        assert crowd.turns == ["dev-0", "dev-2"]


def test_small_turns_do_not_cost_a_device_its_bytes() -> None:
    with a_crowd() as crowd:
        assert crowd.wait("dev-0").result(PATIENCE_S)
        hour, half = RATE * 3600, RATE * 1800
        crowd.wait("large", hour)
        crowd.wait("small", half)
        crowd.let_an_hour_pass(2)
        crowd.wait(crowd.turns[-1], {"large": hour, "small": half}[crowd.turns[-1]])
        for turn in range(3, 9):
            crowd.let_an_hour_pass(turn)
            last = crowd.turns[-1]
            crowd.wait(last, {"large": hour, "small": half}[last])
        counts = {name: crowd.turns.count(name) for name in ("large", "small")}
        assert counts["small"] >= 2 * counts["large"] - 2, crowd.turns


def test_at_the_end_nobody_waits_any_more() -> None:
    with a_crowd() as crowd:
        assert crowd.wait("dev-0").result(PATIENCE_S)
        waiting = crowd.wait("dev-1")
        crowd.pace.end()
        assert not waiting.result(PATIENCE_S)


@pytest.mark.parametrize("devices", [3, 300])
def test_what_is_remembered_of_devices_is_bounded(devices: int) -> None:
    clock = FakeClock()
    pace = Pace(2**40, clock)
    for number in range(devices):
        assert pace.turn(f"dev-{number}", 1, always)
    assert len(pace._had_bytes) <= 64
