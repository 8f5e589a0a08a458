"""Casts to fleets of any kind: they end, all get all, and it costs little more than one blob.

The decisions are those of production; links, broker and time are simulated
(`tests.simulators.casting`), and what casts leave over comes as in `tests.simulators.delivery`.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.delivery.casts import LEAST_BYTES
from tests.simulators.casting import Casting, Listener, Manner
from tests.simulators.delivery import Delivery, Link
from wire.package.index import CHUNK_BYTES

KIB = 1024
SIZE = 5_000_000
FAST = Link(bytes_per_s=100e6, round_trip_s=0.005)
MEDIUM = Link(bytes_per_s=2e6, round_trip_s=0.05)
SLOW = Link(bytes_per_s=64e3, round_trip_s=0.1)
LONG_S = 1e5
LIES: tuple[Manner, ...] = ("never lacks less", "all has come", "late", "too far", "dead")


def fleet(links: list[Link], within_s: float = 0.3) -> list[Listener]:
    """Return devices that ask one after the other."""
    return [
        Listener(name=f"d{number}", link=link, asks_s=within_s * number / len(links))
        for number, link in enumerate(links)
    ]


def cast(listeners: list[Listener], size_bytes: int = SIZE, seed: int = 0) -> Casting:
    casting = Casting(listeners, size_bytes, CHUNK_BYTES, seed=seed)
    assert casting.run(LONG_S)
    # Liars alone may have a round at the slowest pace.
    casting.wait(30.0 if all(each.manner == "honest" for each in listeners) else 400.0)
    assert casting.is_idle()
    return casting


def get_the_rest(listeners: list[Listener], size_bytes: int = SIZE) -> None:
    """Let what lacks come by messages."""
    alive = [each for each in listeners if each.dies_s == float("inf") and each.manner == "honest"]
    rest = Delivery(
        [each.link for each in alive], size_bytes, lacking=[each.lacking for each in alive]
    )
    rest.run(LONG_S)
    assert rest.ended


@pytest.mark.parametrize("link", [FAST, MEDIUM, SLOW], ids=["fast", "medium", "slow"])
def test_a_fleet_on_equal_links_hears_every_byte_once(link: Link) -> None:
    listeners = fleet([link] * 40)
    casting = cast(listeners)
    assert [each.ended for each in listeners] == ["alone"] + ["complete"] * 39
    assert casting.cast_bytes <= SIZE + CHUNK_BYTES
    alone_s = SIZE / link.bytes_per_s
    assert max(each.ended_s for each in listeners) <= 1.3 * alone_s + 5.0


def test_a_thousand_devices_cost_a_few_blobs_and_a_bounded_broker() -> None:
    size_bytes = 10 * CHUNK_BYTES
    listeners = fleet([FAST] * 1000, within_s=2.0)
    casting = cast(listeners, size_bytes)
    assert casting.cast_bytes <= 3 * size_bytes
    assert casting.most_broker_bytes <= 64 * KIB * KIB
    got = sum(each.came_bytes for each in listeners)
    assert got >= 0.95 * 999 * size_bytes


def test_slow_devices_do_not_slow_a_fast_majority() -> None:
    fast = fleet([FAST] * 30)
    mixed = fleet([FAST] * 30 + [SLOW] * 20)
    cast(fast)
    cast(mixed)
    alone_s = max(each.ended_s for each in fast)
    assert max(each.ended_s for each in mixed if each.link == FAST) <= 2 * alone_s
    get_the_rest(mixed)


def test_who_joins_in_the_middle_gets_the_beginning_in_the_next_round() -> None:
    listeners = fleet([MEDIUM] * 20) + [
        Listener(name=f"late-{number}", link=MEDIUM, asks_s=2.5) for number in range(10)
    ]
    casting = cast(listeners)
    assert {each.ended for each in listeners[1:]} == {"complete"}
    assert SIZE < casting.cast_bytes <= 2 * SIZE + CHUNK_BYTES


def test_devices_that_die_are_not_waited_for() -> None:
    listeners = fleet([FAST] * 40)
    for listener in listeners[::2]:
        listener.dies_s = 1.2
    cast(listeners)
    assert {each.ended for each in listeners[3::2]} == {"complete"}
    assert max(each.ended_s for each in listeners[1::2]) < 30.0


@pytest.mark.parametrize("lie", LIES)
def test_a_minority_that_lies_costs_the_others_nothing(lie: Manner) -> None:
    listeners = fleet([FAST] * 21)
    for listener in listeners[1:10]:
        listener.manner = lie
    casting = cast(listeners)
    honest = [each for each in listeners[1:] if each.manner == "honest"]
    assert {each.ended for each in honest} == {"complete"}
    assert casting.cast_bytes <= 2 * (SIZE + CHUNK_BYTES)
    assert max(each.ended_s for each in honest) < 15.0


@pytest.mark.parametrize("lie", LIES)
def test_a_fleet_of_liars_cannot_keep_a_cast_alive(lie: Manner) -> None:
    listeners = fleet([FAST] * 21)
    for listener in listeners[1:]:
        listener.manner = lie
    casting = Casting(listeners, SIZE, CHUNK_BYTES)
    casting.wait(1000.0)
    assert casting.is_idle()
    assert casting.cast_bytes <= 2 * (SIZE + CHUNK_BYTES)


def links() -> st.SearchStrategy[Link]:
    """Links from 64 KB/s to 100 MB/s, from 1 ms to 1 s, of which some lose messages."""
    return st.builds(
        lambda rate, trip, loss: Link(bytes_per_s=rate, round_trip_s=10**trip, loss=loss),
        st.sampled_from([64e3, 256e3, 1e6, 10e6, 100e6]),
        st.floats(-3, 0),
        st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.2]),
    )


def devices() -> st.SearchStrategy[Listener]:
    return st.builds(
        lambda link, asks_s, manner, dies_s: Listener(
            name="", link=link, asks_s=asks_s, manner=manner, dies_s=dies_s
        ),
        links(),
        st.sampled_from([0.0, 0.1, 0.3, 1.0, 4.0, 20.0]),
        st.sampled_from(["honest"] * 8 + list(LIES)),
        st.sampled_from([float("inf")] * 9 + [2.0]),
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(devices(), min_size=2, max_size=40),
    st.integers(LEAST_BYTES, 4 * LEAST_BYTES),
    st.integers(0, 100),
)
def test_in_any_fleet_it_ends_and_all_get_all(
    listeners: list[Listener], size_bytes: int, seed: int
) -> None:
    for number, listener in enumerate(listeners):
        listener.name = f"d{number}"
    casting = cast(listeners, size_bytes, seed)
    # Nobody is listened to for more than a round, and each piece is for two at least.
    assert casting.cast_bytes <= (len(listeners) + 1) / 2 * (size_bytes + CHUNK_BYTES)
    get_the_rest(listeners, size_bytes)
