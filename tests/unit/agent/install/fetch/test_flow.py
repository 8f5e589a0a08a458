"""How much of a transfer is under way, and when it is taken for lost."""

from __future__ import annotations

import pytest

from agent.install.fetch.flow import (
    INITIAL_PATIENCE_S,
    INITIAL_WINDOW_BYTES,
    LONGEST_PATIENCE_S,
    MAX_PATIENCE_S,
    MAX_WINDOW_BYTES,
    MIN_PATIENCE_S,
    MIN_PIECE_BYTES,
    NEAR_WINDOW_BYTES,
    TARGET_DELAY_S,
    Flow,
)


class Way:
    """One window after the other: each comes when the link has carried it.

    Args:
        bytes_per_s: The rate of the link.
        base_s: What a round trip takes without a window.
    """

    def __init__(self, bytes_per_s: float = 1e9, base_s: float = 0.1) -> None:
        self.flow = Flow()
        self.now_s = 0.0
        self.number = 0
        self.bytes_per_s = bytes_per_s
        self.base_s = base_s

    def round(self, waited_s: float = 0.0, *, lost: bool = False) -> None:
        self.number += 1
        self.flow.asked(self.number, self.now_s)
        window_bytes = self.flow.window_bytes
        self.now_s += self.base_s + window_bytes / self.bytes_per_s + waited_s
        if lost:
            self.flow.lost()
        self.flow.arrived(self.number, window_bytes, waited_s, self.now_s)
        self.flow.settled(self.number)

    def rounds(self, count: int, waited_s: float = 0.0) -> None:
        for _ in range(count):
            self.round(waited_s)


def test_it_begins_small_and_doubles_each_round_trip() -> None:
    way = Way()
    windows = []
    for _ in range(10):
        way.round()
        windows.append(way.flow.window_bytes)
    # The first answer of a round ends the one before.
    assert windows[:6] == [INITIAL_WINDOW_BYTES * 2**n for n in range(6)]
    assert windows == sorted(windows)
    assert windows[-1] <= MAX_WINDOW_BYTES


def test_a_near_device_needs_no_more_than_a_part_of_that() -> None:
    way = Way(bytes_per_s=100e6, base_s=0.0005)
    way.rounds(12)
    assert way.flow.window_bytes == NEAR_WINDOW_BYTES


def test_an_impatience_that_was_wrong_is_taken_back() -> None:
    way = Way()
    way.rounds(6)
    before = way.flow.window_bytes
    way.flow.asked(100, way.now_s)
    way.flow.ran_out()
    assert way.flow.window_bytes == MIN_PIECE_BYTES
    way.flow.asked(101, way.now_s)
    way.flow.arrived(100, MIN_PIECE_BYTES, 0.0, way.now_s + 5)
    assert way.flow.window_bytes >= before / 2
    way.flow.ran_out()
    way.flow.asked(102, way.now_s)
    way.flow.arrived(102, MIN_PIECE_BYTES, 0.0, way.now_s + 6)
    assert way.flow.window_bytes <= 2 * MIN_PIECE_BYTES


def test_a_delay_that_a_piece_alone_has_too_is_not_of_the_devices_own_making() -> None:
    way = Way()
    for _ in range(40):
        way.round(lost=True)
    assert way.flow.window_bytes == MIN_PIECE_BYTES
    for number in range(40):
        way.base_s = 0.1 if number % 2 else 3.1
        way.round()
    assert way.flow.window_bytes >= 16 * MIN_PIECE_BYTES


@pytest.mark.parametrize("bytes_per_s", [20e3, 100e3, 500e3])
def test_a_delay_that_the_devices_own_window_makes_is_seen(bytes_per_s: float) -> None:
    way = Way(bytes_per_s)
    way.rounds(20)
    for _ in range(200):
        way.round()
        assert way.flow.window_bytes <= max(4 * TARGET_DELAY_S * bytes_per_s, 4 * MIN_PIECE_BYTES)


def test_waiting_at_the_controller_is_no_delay_of_the_link() -> None:
    way = Way()
    way.rounds(3)
    before = way.flow.window_bytes
    way.rounds(3, waited_s=5.0)
    assert way.flow.window_bytes == 8 * before


def test_it_waits_for_as_long_as_answers_took_lately() -> None:
    way = Way()
    assert way.flow.patience_s == INITIAL_PATIENCE_S
    way.rounds(20)
    assert way.flow.patience_s == MIN_PATIENCE_S
    way.rounds(30, waited_s=7.9)
    assert way.flow.patience_s == pytest.approx(8.0, rel=0.3)


def test_patience_that_runs_out_doubles_until_something_comes() -> None:
    way = Way()
    way.rounds(20)
    patiences = []
    for _ in range(9):
        way.flow.ran_out()
        patiences.append(way.flow.patience_s)
    assert patiences == [min(MIN_PATIENCE_S * 2**n, MAX_PATIENCE_S) for n in range(1, 10)]
    assert way.flow.window_bytes == MIN_PIECE_BYTES
    way.round()
    assert way.flow.patience_s == MIN_PATIENCE_S


def test_patience_is_as_long_as_answers_have_taken_also_beyond_its_maximum() -> None:
    flow = Flow()
    flow.asked(1, 0.0)
    for number, now_s in ((2, 3.0), (3, 9.0), (4, 21.0), (5, 45.0)):
        flow.ran_out()
        flow.asked(number, now_s)
    flow.arrived(1, MIN_PIECE_BYTES, 0.0, 160.0)
    assert MAX_PATIENCE_S < flow.patience_s <= LONGEST_PATIENCE_S
    before_s = flow.patience_s
    flow.ran_out()
    assert flow.patience_s == before_s


def test_losses_shrink_the_window_once_a_round_trip_and_never_below_a_piece() -> None:
    way = Way()
    way.rounds(6)
    before = way.flow.window_bytes
    way.round(lost=True)
    assert way.flow.window_bytes >= before / 2
    for _ in range(40):
        way.round(lost=True)
    assert way.flow.window_bytes == MIN_PIECE_BYTES


def test_answers_that_nobody_waits_for_change_nothing() -> None:
    flow = Flow()
    flow.arrived(7, 1024, 0.0, 1.0)
    flow.lost()
    assert flow.window_bytes == INITIAL_WINDOW_BYTES
    assert flow.patience_s == INITIAL_PATIENCE_S


@pytest.mark.parametrize("waited_s", [float("nan"), float("inf"), -1e300, 1e300])
def test_an_impossible_wait_at_the_controller_is_not_believed(waited_s: float) -> None:
    honest, other = Way(), Way()
    for number in range(1, 30):
        for way, wait_s in ((honest, 0.0), (other, waited_s)):
            way.flow.asked(number, float(number))
            way.flow.arrived(number, MIN_PIECE_BYTES, wait_s, number + 0.5)
            way.flow.settled(number)
    assert other.flow.window_bytes == honest.flow.window_bytes
    assert other.flow.patience_s == honest.flow.patience_s
