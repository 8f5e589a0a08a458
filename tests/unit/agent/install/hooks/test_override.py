"""An override holds for one install and for a time."""

from __future__ import annotations

from agent.install.hooks.override import Override
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard


def made() -> tuple[Override, FakeClock, Heard]:
    clock, heard = FakeClock(), Heard([], [])
    return Override(heard, clock), clock, heard


def test_it_holds_for_the_first_install_that_needs_it_and_for_no_other() -> None:
    override, _clock, _heard = made()
    assert not override.covers(("digits", 1))
    override.allow(3600)
    assert override.covers(("digits", 2))
    assert override.covers(("digits", 2))
    assert not override.covers(("digits", 3))


def test_it_ends_with_the_install_that_needed_it() -> None:
    override, _clock, _heard = made()
    override.allow(3600)
    override.end(("digits", 2))
    assert override.rest_s == 3600, "that install needed none"
    assert override.covers(("digits", 2))
    override.end(("digits", 2))
    assert not override.covers(("digits", 2))


def test_it_ends_with_its_time() -> None:
    override, clock, _heard = made()
    override.allow(3600)
    assert override.rest_s == 3600
    clock.advance(3599)
    assert override.covers(("digits", 2))
    clock.advance(1)
    assert not override.covers(("digits", 2))
    assert override.rest_s is None


def test_it_can_be_taken_back_and_every_order_is_an_event() -> None:
    override, _clock, heard = made()
    override.allow(5400)
    override.clear()
    assert not override.covers(("digits", 2))
    assert override.rest_s is None
    assert [(kind, reason) for kind, reason, _data in heard.events] == [
        ("override", "the operator overrides what would hold one install within 1h30m"),
        ("override", "the operator lets hooks, window, battery and budgets count again"),
    ]


def test_a_new_order_is_for_another_install() -> None:
    override, _clock, _heard = made()
    override.allow(60)
    assert override.covers(("digits", 2))
    override.allow(60)
    assert override.covers(("digits", 3))
    assert not override.covers(("digits", 2))


def test_the_install_of_another_model_of_the_same_revision_is_another_install() -> None:
    override, _clock, _heard = made()
    override.allow(3600)
    assert override.covers(("digits", 2))
    assert not override.covers(("speech", 2))
    override.end(("speech", 2))
    assert override.covers(("digits", 2)), "its install goes on"
