"""Which device gets a blob where there is not room for all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.download_places import MAX_OF_DEVICE, DownloadPlaces
from controller.errors import BusyError


class Crowd:
    """Devices that take all that they are given."""

    def __init__(self, connections: int, per_client: int) -> None:
        self.transfers = DownloadPlaces[int](connections, per_client)
        self.has: dict[int, str] = {}
        self.began = 0

    def ask(self, device: str, client: str = "a") -> bool:
        self.began += 1
        try:
            loser = self.transfers.begin(self.began, device, client)
        except BusyError:
            return False
        if loser is not None:
            del self.has[loser]
        self.has[self.began] = device
        return True

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.has.values())


def test_where_there_is_room_a_device_gets_eight() -> None:
    crowd = Crowd(64, 64)
    for _ in range(MAX_OF_DEVICE):
        assert crowd.ask("one")
    assert not crowd.ask("one")
    assert crowd.ask("two")
    assert crowd.counts["one"] == MAX_OF_DEVICE


def test_all_connections_taken_by_32_devices_leave_each_newcomer_its_place() -> None:
    crowd = Crowd(256, 256)
    for number in range(1000):
        crowd.ask(f"greedy-{number % 32}")
    for number in range(100):
        assert crowd.ask(f"cam-{number}")
    counts = crowd.counts
    assert {counts[f"cam-{number}"] for number in range(100)} == {1}
    assert {counts[f"greedy-{number}"] for number in range(32)} <= {3, 4}


def test_the_oldest_transfer_of_the_device_with_most_ends() -> None:
    crowd = Crowd(3, 3)
    crowd.ask("one")
    for _ in range(2):
        crowd.ask("many")
    assert crowd.ask("two")
    assert set(crowd.has) == {1, 3, 4}


def test_where_each_has_one_a_newcomer_waits() -> None:
    crowd = Crowd(3, 3)
    for name in ("one", "two", "three"):
        assert crowd.ask(name)
    assert not crowd.ask("four")
    assert not crowd.ask("one")
    crowd.transfers.end(2)
    assert crowd.ask("four")


def test_behind_one_address_the_same_holds_and_others_lose_nothing() -> None:
    crowd = Crowd(100, 4)
    for _ in range(4):
        assert crowd.ask("greedy", client="near")
    assert [crowd.ask("far", client="far") for _ in range(5)] == [*[True] * 4, False]
    assert crowd.ask("cam", client="near")
    assert crowd.counts == {"greedy": 3, "far": 4, "cam": 1}


@given(
    connections=st.integers(1, 40),
    asks=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=200),
)
def test_nobody_who_has_none_is_refused_while_another_has_two(
    connections: int, asks: list[tuple[int, bool]]
) -> None:
    crowd = Crowd(connections, connections)
    for number, ends in asks:
        device = f"cam-{number}"
        if ends and crowd.has:
            oldest = next(iter(crowd.has))
            crowd.transfers.end(oldest)
            del crowd.has[oldest]
        before = crowd.counts
        if not crowd.ask(device) and not before[device]:
            assert max(before.values()) == 1
        assert len(crowd.has) <= connections
        assert max(crowd.counts.values(), default=0) <= MAX_OF_DEVICE


@pytest.mark.parametrize("connections", [1, 2, 7, 8])
def test_few_connections_carry_blobs_too(connections: int) -> None:
    assert Crowd(connections, connections).ask("cam")
