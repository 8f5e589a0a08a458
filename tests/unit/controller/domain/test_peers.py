"""Which devices of a site are told to others: never a stranger, never in a circle, evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.domain.peers import (
    ASKED_S,
    LINK_S,
    MAX_ASKED,
    MAX_EARLIER,
    MAX_OF_BLOB,
    MAX_OF_DEVICE,
    MAX_TOLD,
    REMEMBERED_S,
    Device,
    PeerChoice,
)

BLOB, OTHER = "a" * 64, "b" * 64
TEN = tuple(f"cam-{number}" for number in range(10))


def device(name: str, *has: str, site: str = "roof") -> Device:
    return Device(name, site, frozenset(has))


def asked(
    choice: PeerChoice,
    who: Device,
    near: Iterable[Device] = (),
    now_s: float = 0.0,
    blob: str = BLOB,
) -> tuple[str, ...]:
    """Let a device that serves others ask for one blob."""
    found = choice.choose(who, [blob], list(near), now_s)
    choice.note(who, [blob], now_s)
    return found.get(blob, ())


def site(names: Iterable[str] = TEN, *has: str) -> list[Device]:
    return [device(name, *has) for name in names]


def test_of_ten_that_begin_at_once_the_others_are_sent_to_the_first() -> None:
    choice = PeerChoice(most=2)
    told = {name: asked(choice, device(name), site()) for name in TEN}
    assert told["cam-0"] == ()
    assert told["cam-1"] == ("cam-0",)
    for number, name in enumerate(TEN[2:], 2):
        first, second = told[name]
        assert first == "cam-0"
        assert second in TEN[1:number]


def test_who_has_it_comes_first_and_who_fetches_it_fills_up() -> None:
    choice = PeerChoice(most=2)
    asked(choice, device("cam-1"), site())
    near = [device("cam-0", BLOB), *site(TEN[1:])]
    assert asked(choice, device("cam-2"), near) == ("cam-0", "cam-1")
    both = [device("cam-0", BLOB), device("cam-9", BLOB), *site(TEN[1:9])]
    assert set(asked(choice, device("cam-3"), both)) == {"cam-0", "cam-9"}


def test_those_that_have_it_are_told_evenly_and_always_in_the_same_order() -> None:
    holders = site((f"full-{number}" for number in range(8)), BLOB)
    names = [f"cam-{number}" for number in range(800)]
    first = {name: asked(PeerChoice(2), device(name), holders) for name in names}
    again = {name: asked(PeerChoice(2), device(name), reversed(holders)) for name in names}
    assert first == again
    counts = Counter(found[0] for found in first.values())
    assert len(counts) == 8
    assert all(70 <= count <= 130 for count in counts.values()), counts


def test_who_is_gone_changes_the_order_for_those_alone_that_were_sent_there() -> None:
    holders = site((f"full-{number}" for number in range(8)), BLOB)
    for number in range(100):
        name = f"cam-{number}"
        before = asked(PeerChoice(8), device(name), holders)
        after = asked(PeerChoice(8), device(name), holders[1:])
        assert after == tuple(peer for peer in before if peer != "full-0")


def test_a_device_that_is_not_there_now_is_not_told() -> None:
    choice = PeerChoice(most=2)
    asked(choice, device("cam-0"), site())
    assert asked(choice, device("cam-1"), site(TEN[1:])) == ()
    assert choice.earlier("cam-2", "roof", [BLOB], 0.0) == ["cam-0", "cam-1"]


def test_another_site_is_never_told() -> None:
    choice = PeerChoice(most=2)
    asked(choice, device("cam-0", site="cellar"))
    near = [device("cam-0", site="cellar"), device("cam-9", BLOB, site="cellar")]
    assert asked(choice, device("cam-1"), near) == ()
    assert choice.earlier("cam-1", "roof", [BLOB], 0.0) == []


def test_who_asked_long_ago_does_not_fetch_any_more() -> None:
    choice = PeerChoice(most=2)
    asked(choice, device("cam-0"), site(), now_s=0.0)
    assert choice.choose(device("cam-1"), [BLOB], site(), ASKED_S - 1) == {BLOB: ("cam-0",)}
    assert choice.choose(device("cam-1"), [BLOB], site(), ASKED_S) == {}


def test_who_comes_back_is_not_sent_to_who_was_sent_to_it() -> None:
    choice = PeerChoice(most=2)
    asked(choice, device("cam-0"), site(), now_s=0.0)
    assert asked(choice, device("cam-1"), site(), now_s=1.0) == ("cam-0",)
    assert asked(choice, device("cam-0"), site(), now_s=ASKED_S + 2) == ()
    assert asked(choice, device("cam-0"), site(), now_s=2 * ASKED_S) == ()


def test_who_lost_what_it_should_have_is_sent_to_nobody_that_fetches_and_has_it_no_more() -> None:
    choice = PeerChoice(most=2)
    near = [device("cam-0", BLOB), *site(TEN[1:])]
    assert asked(choice, device("cam-1"), near) == ("cam-0",)
    assert asked(choice, device("cam-0", BLOB), near) == (), "cam-1 waits for it"
    assert asked(choice, device("cam-2"), near) == ("cam-1", "cam-0"), "both fetch"


def test_what_is_remembered_is_bounded_for_all_and_for_each_device() -> None:
    choice = PeerChoice(most=2)
    blobs = [f"{number:064x}" for number in range(2 * MAX_OF_DEVICE)]
    choice.note(device("greedy"), blobs, 0.0)
    assert len(choice) == MAX_OF_DEVICE
    for number in range(MAX_ASKED // MAX_OF_DEVICE + 5):
        choice.note(device(f"cam-{number}", site=str(number)), blobs, 1.0)
    assert len(choice) == MAX_ASKED
    for number in range(2 * MAX_OF_BLOB):
        choice.note(device(f"late-{number}"), [BLOB], 2.0)
    assert len(choice.earlier("new", "roof", [BLOB], 2.0)) == MAX_OF_BLOB == MAX_EARLIER
    assert len(choice) == MAX_ASKED
    choice.choose(device("new"), [], [], 3 * REMEMBERED_S)
    assert len(choice) == 0, "time ends all of it"


def test_what_was_told_is_bounded() -> None:
    choice = PeerChoice(most=8)
    holders = 8
    blobs = [f"{number:064x}" for number in range(MAX_TOLD // holders + 100)]
    near = site((f"full-{number}" for number in range(holders)), *blobs)
    assert len(choice.choose(device("cam-0"), blobs, near, 0.0)) == len(blobs)
    assert len(choice) == MAX_TOLD
    choice.choose(device("cam-0"), [], [], LINK_S)
    assert len(choice) == 0


class SitesAtWork(RuleBasedStateMachine):
    """Devices ask, get what they asked for, lose it, move, go away and come back; time passes.

    A device follows the answer that it got last, until its links expire.
    """

    names = st.sampled_from([f"cam-{number}" for number in range(4)])

    @initialize(most=st.integers(1, 4))
    def begin(self, most: int) -> None:
        self.choice = PeerChoice(most)
        self.most = most
        self.now_s = 0.0
        self.site = {f"cam-{number}": "roof" if number < 3 else "cellar" for number in range(4)}
        self.has: set[str] = set()
        """Who really has the blob."""

        self.says: set[str] = set()
        """Whose active package should have it."""

        self.away: set[str] = set()
        self.waits: dict[str, tuple[float, tuple[str, ...]]] = {}
        """Who lacks it and has asked: until when its links work, and to whom they lead."""

    @rule(name=names)
    def ask(self, name: str) -> None:
        asking = self._shown(name)
        online = [self._shown(each) for each in self.site if each not in self.away]
        twice = [self.choice.choose(asking, [BLOB, OTHER], online, self.now_s) for _ in "12"]
        assert twice[0] == twice[1], "the same question has the same answer"
        told = twice[0].get(BLOB, ())
        self.choice.note(asking, [BLOB], self.now_s)
        assert OTHER not in twice[0], "nobody has it or asked for it"
        assert len(told) == len(set(told)) <= self.most
        assert name not in told
        assert not set(told) & self.away
        assert {self.site[peer] for peer in told} <= {self.site[name]}
        self.has.discard(name)  # or it would not ask
        self.waits[name] = (self.now_s + LINK_S, told)

    @rule(name=names, is_active=st.booleans())
    def get(self, name: str, is_active: bool) -> None:
        if name in self.waits:
            self.has.add(name)
            del self.waits[name]
            if is_active:
                self.says.add(name)

    @rule(name=names)
    def run_another_package(self, name: str) -> None:
        self.says.discard(name)
        self.has.discard(name)

    @rule(name=names)
    def change_site(self, name: str) -> None:
        self.site[name] = "cellar" if self.site[name] == "roof" else "roof"

    @rule(name=names)
    def go_or_come_back(self, name: str) -> None:
        self.away ^= {name}

    @rule(seconds=st.sampled_from([1.0, 60.0, ASKED_S - 1, ASKED_S, LINK_S - 1, LINK_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.waits = {
            name: (until_s, told)
            for name, (until_s, told) in self.waits.items()
            if self.now_s < until_s
        }

    @invariant()
    def nobody_waits_in_a_circle(self) -> None:
        left = {name: set(told) & self.waits.keys() for name, (_, told) in self.waits.items()}
        while ends := {name for name, told in left.items() if not told}:
            left = {name: told - ends for name, told in left.items() if name not in ends}
        assert not left

    def _shown(self, name: str) -> Device:
        return device(name, *([BLOB] if name in self.says else []), site=self.site[name])


TestSitesAtWork = SitesAtWork.TestCase
TestSitesAtWork.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("most", [1, 2, 8])
def test_a_fleet_that_begins_at_once_fetches_from_afar_once_for_each_site(most: int) -> None:
    choice = PeerChoice(most)
    fleet = [device(f"cam-{n}", site=f"site-{n % 7}") for n in range(70)]
    alone = [each.id for each in fleet if not asked(choice, each, fleet)]
    assert alone == [f"cam-{n}" for n in range(7)]
