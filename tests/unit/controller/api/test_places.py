"""Which connection of the API ends when there are too many."""

from __future__ import annotations

import pytest

from controller.api.places import Places, client_of


def test_a_client_with_too_many_loses_its_own_oldest() -> None:
    places = Places[str](total=100, per_client=2)
    assert places.take("a1", "a") is None
    assert places.take("b1", "b") is None
    assert places.take("a2", "a") is None
    assert places.take("a3", "a") == "a1"
    assert places.take("a4", "a") == "a2"
    assert places.take("b2", "b") is None, "the other client has lost nothing"


def test_who_never_worked_has_waited_since_it_came() -> None:
    places = Places[str](total=100, per_client=2)
    places.take("a1", "a")
    places.take("a2", "a")
    places.wait("a1")
    assert places.take("a3", "a") == "a1", "its answers needed no token"


def test_a_connection_at_work_keeps_its_place() -> None:
    places = Places[str](total=100, per_client=2)
    places.take("a1", "a")
    places.take("a2", "a")
    places.work("a1")
    assert places.take("a3", "a") == "a2"
    places.work("a3")
    assert places.take("a4", "a") == "a4", "all others are at work"
    places.wait("a1")
    assert places.take("a5", "a") == "a1"


def test_what_has_waited_for_longest_goes_first() -> None:
    places = Places[str](total=100, per_client=2)
    places.take("a1", "a")
    places.take("a2", "a")
    places.work("a1")
    places.wait("a1")
    assert places.take("a3", "a") == "a2"


def test_if_there_are_too_many_in_all_the_client_with_the_most_loses_one() -> None:
    places = Places[str](total=3, per_client=3)
    places.take("b1", "b")
    places.take("a1", "a")
    places.take("a2", "a")
    assert places.take("c1", "c") == "a1"
    assert places.take("a3", "a") == "a2", "it takes no place of a client that has fewer"


def test_who_has_left_counts_no_more() -> None:
    places = Places[str](total=2, per_client=1)
    places.take("a1", "a")
    places.leave("a1")
    places.leave("a1")
    places.wait("a1")
    assert places.take("a2", "a") is None
    assert places.take("b1", "b") is None


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_one_machine_is_one_client_whatever_addresses_it_has(address: str, client: str) -> None:
    assert client_of(address) == client
