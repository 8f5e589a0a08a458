"""Flow control over links of any kind: the transfer ends, and almost nothing is sent twice.

The device's and the controller's decisions are those of production; links, broker and time are
simulated (`tests.simulators.delivery`).
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.install.fetch.flow import (
    INITIAL_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    TARGET_DELAY_S,
    Flow,
)
from controller.delivery.lanes import MOST_BYTES
from tests.simulators.delivery import Delivery, Link
from wire.package.index import CHUNK_BYTES

KIB = 1024
LONG_S = 1e6
USEFUL = 0.95


def link(bytes_per_s: float, round_trip_s: float = 0.05, loss: float = 0.0) -> Link:
    return Link(bytes_per_s=bytes_per_s, round_trip_s=round_trip_s, loss=loss)


def delivered(links: list[Link], size_bytes: int, seed: int = 0) -> Delivery:
    delivery = Delivery(links, size_bytes, seed=seed)
    delivery.run(LONG_S)
    assert delivery.ended
    return delivery


def links_with(loss: float) -> st.SearchStrategy[Link]:
    """Links from 1 KB/s to 1 GB/s and from 1 ms to 10 s."""
    return st.builds(
        lambda rate, round_trip, lost: link(10**rate, 10**round_trip, lost),
        st.floats(3, 9),
        st.floats(-3, 1),
        st.floats(0, loss),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(links_with(0.0), min_size=1, max_size=30), st.integers(1, 20 * CHUNK_BYTES))
def test_over_any_link_it_ends_and_sends_almost_nothing_twice(
    links: list[Link], size_bytes: int
) -> None:
    delivery = delivered(links, size_bytes)
    # What a device that knows nothing yet asks for too early: a few of the smallest pieces.
    first_bytes = 4 * 8 * KIB * len(links)
    useful_bytes = size_bytes * len(links)
    assert delivery.sent_bytes <= useful_bytes / USEFUL + first_bytes


@settings(max_examples=40, deadline=None)
@given(
    st.lists(links_with(0.2), min_size=1, max_size=10),
    st.integers(1, 8 * CHUNK_BYTES),
    st.integers(0, 2**32),
)
def test_it_ends_also_where_every_fifth_message_is_lost(
    links: list[Link], size_bytes: int, seed: int
) -> None:
    delivered(links, size_bytes, seed)


@pytest.mark.parametrize("rate", [16e3, 64e3, 256e3, 4e6])
def test_a_link_is_filled(rate: float) -> None:
    size_bytes = int(60 * rate)
    delivery = delivered([link(rate)], size_bytes)
    assert delivery.now_s <= 60 / 0.9
    assert delivery.useful >= USEFUL


@pytest.mark.parametrize("rate", [16e3, 64e3, 256e3, 4e6])
def test_a_control_message_waits_seconds_behind_pieces_and_no_more(rate: float) -> None:
    delivery = delivered([link(rate)], int(30 * rate))
    # The most is once, where the doubling of the window meets the end of the link.
    assert delivery.devices[0].most_waiting_s <= 16 * TARGET_DELAY_S


@pytest.mark.parametrize("count", [50, 300, 1000])
def test_many_devices_at_once_share_what_there_is(count: int) -> None:
    size_bytes = 4 * CHUNK_BYTES
    delivery = delivered([link(100e6, 0.001)] * count, size_bytes)
    assert delivery.useful >= USEFUL
    assert delivery.most_broker_bytes <= MOST_BYTES
    # Nobody waits for another: at the half of the time everybody has something, and all end late.
    ended = sorted(device.ended_s or LONG_S for device in delivery.devices)
    assert ended[0] >= ended[-1] / 4


def test_slow_links_do_not_keep_fast_ones_waiting() -> None:
    slow, fast = [link(4e3)] * 20, [link(50e6, 0.001)] * 20
    delivery = delivered(slow + fast, 4 * CHUNK_BYTES)
    last_fast_s = max(device.ended_s or LONG_S for device in delivery.devices[20:])
    assert last_fast_s < delivery.now_s / 20


def test_a_controller_that_forgets_everything_sends_little_again() -> None:
    delivery = Delivery([link(1e6)] * 20, 16 * CHUNK_BYTES)
    for when_s in (0.5, 1.0, 1.5):
        delivery.at(when_s, delivery.restart_controller)
    delivery.run(LONG_S)
    assert delivery.ended
    # What waited there is asked for again when the patience has run out; it was never sent.
    assert delivery.useful >= USEFUL


def test_a_rate_that_falls_to_a_hundredth_causes_no_flood() -> None:
    delivery = Delivery([link(10e6)], 200 * CHUNK_BYTES)
    device = delivery.devices[0]
    sent_bytes = 0

    def fall() -> None:
        nonlocal sent_bytes
        sent_bytes = delivery.sent_bytes
        device.link = link(0.1e6)

    delivery.at(1.0, fall)
    delivery.run(LONG_S)
    assert delivery.ended
    assert delivery.useful >= USEFUL
    assert delivery.now_s < 1.05 * (delivery.size_bytes - sent_bytes) / 0.1e6


def test_a_new_connection_goes_on_at_once() -> None:
    delivery = Delivery([link(1e6)], 64 * CHUNK_BYTES)
    device = delivery.devices[0]
    for when_s in range(1, 8):
        delivery.at(float(when_s), lambda: delivery.reconnect(device))
    delivery.run(LONG_S)
    assert delivery.ended
    assert delivery.now_s < 8 + 7 * 1.0


def test_a_way_that_has_become_longer_is_not_taken_for_a_full_link_for_ever() -> None:
    """So it is where processors are busy: answers take long, however few there are."""
    delivery = Delivery([link(20e6, 0.01)], 1000 * CHUNK_BYTES)
    device = delivery.devices[0]

    def lengthen() -> None:
        device.link = link(20e6, 1.5)

    delivery.at(1.0, lengthen)
    delivery.run(LONG_S)
    assert delivery.ended
    assert delivery.useful >= USEFUL
    left_bytes = 1000 * CHUNK_BYTES - 20e6
    # The largest window takes 1.5 s for each round; one smallest piece would take six hours.
    assert delivery.now_s < 3 * 1.5 * left_bytes / MAX_WINDOW_BYTES


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_delay_that_varies_is_not_taken_for_a_full_link(seed: int) -> None:
    """So it is over radio and behind a busy broker. One late message holds up those behind it."""
    way = Link(bytes_per_s=10e6, round_trip_s=0.05, jitter_s=2.0)
    delivery = delivered([way], 4_000_000, seed)
    assert delivery.useful >= USEFUL
    # With the largest window all the time it takes 100 s, with the smallest 2000 s.
    assert delivery.now_s < 500


def test_a_piece_that_takes_minutes_is_waited_for() -> None:
    """So it is where many share a slow link. To ask again too early would fill it for ever."""
    delivery = delivered([link(40.0)], CHUNK_BYTES)
    # What is sent twice is asked for while the device does not know yet how long a piece takes.
    assert delivery.sent_bytes <= CHUNK_BYTES + 8 * 8 * KIB


def test_pieces_are_small_on_slow_links_and_large_on_fast_ones() -> None:
    slow = Delivery([link(64e3)], 200 * CHUNK_BYTES)
    slow.run(60)
    assert 8 * KIB <= slow.devices[0].flow.piece_bytes <= 32 * KIB
    fast = Delivery([link(50e6, 0.002)], 200 * CHUNK_BYTES)
    fast.run(0.3)
    assert fast.devices[0].flow.piece_bytes >= CHUNK_BYTES


@pytest.mark.parametrize("rate", [4e3, 16e3, 64e3])
def test_small_files_before_a_large_one_do_not_open_the_window(rate: float) -> None:
    """An envelope, a manifest and labels fill no link, so they say nothing about it."""
    flow = Flow()
    for size_bytes in (2_000, 300, 1_000, 4_000, 50, 700, 3_000):
        small = Delivery([link(rate)], size_bytes, flows=[flow])
        small.run(LONG_S)
        assert small.ended
    assert flow.window_bytes <= 4 * INITIAL_WINDOW_BYTES
    large = Delivery([link(rate)], int(30 * rate), flows=[flow])
    large.run(LONG_S)
    # Where a piece takes longer than all small files did, it is asked for again at first.
    assert large.sent_bytes <= large.size_bytes / USEFUL + 4 * 8 * KIB
    assert large.devices[0].most_waiting_s <= 16 * TARGET_DELAY_S * max(16e3 / rate, 1)
