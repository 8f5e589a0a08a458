"""Of decisions once a second, those that are news are told, and not too many of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.select.decision_log import LEAST_GAP_S, DecisionLog
from agent.select.decisions import Decision, PolicyState
from agent.select.levers import Levers
from tests.simulators.clock import FakeClock

WELL = "the most accurate variant that keeps the objective"


class Told:
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, object]]] = []

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        raise AssertionError((metric, amount, attributes))

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        self.events.append((kind, reason, data))


def decision(reason: str, variant: str | None = "int8", *, stream: bool = False) -> Decision:
    return Decision(
        variant=variant, reason=reason, state=PolicyState(), inputs={"headroom": 0.5},
        verdicts={"float32": "slower"}, stream=stream,
    )  # fmt: skip


def told_of(*decisions: Decision, every_s: float = 1.0) -> list[str]:
    told, clock = Told(), FakeClock()
    log = DecisionLog(told, clock)
    log.switched(decisions[0])
    for one in decisions[1:]:
        clock.advance(every_s)
        log.stayed(one, "digits:1")
    return [reason for _, reason, _ in told.events]


def test_a_decision_that_stays_is_told_once_with_what_it_was_made_from() -> None:
    told, clock = Told(), FakeClock()
    log = DecisionLog(told, clock)
    for _ in range(100):
        clock.advance(1.0)
        log.stayed(decision(WELL), "digits:1")
    assert told.events == [
        (
            "decision",
            WELL,
            {
                "variant": "int8",
                "release": "digits:1",
                "stream": False,
                "levers": (),
                "inputs": {"headroom": 0.5},
                "verdicts": {"float32": "slower"},
            },
        )
    ]


def test_what_a_switch_told_is_not_told_again() -> None:
    assert told_of(decision(WELL), *[decision(WELL)] * 100) == []


def test_a_countdown_is_no_news() -> None:
    held = [decision(f"held: {n}.5 of 300 s since the last switch") for n in range(300)]
    assert told_of(*held) == []


def test_another_mode_is_news_at_once() -> None:
    assert told_of(decision(WELL), decision(WELL, "int8", stream=True)) == [WELL]


def test_that_nothing_may_serve_is_news_at_once() -> None:
    assert told_of(decision(WELL), decision("no variant may serve", None)) == [
        "no variant may serve"
    ]


def test_another_reason_is_news_after_a_while() -> None:
    hot = decision("no variant keeps the objective; int8: headroom may reach 1.02 in 60 s")
    assert told_of(decision(WELL), hot, every_s=1.0) == []
    assert told_of(decision(WELL), hot, every_s=LEAST_GAP_S) == [hot.reason]


@given(st.lists(st.sampled_from(["a 1", "a 2", "b", "c 3.5"]), min_size=2, max_size=400))
def test_reasons_that_flicker_are_told_seldom(reasons: list[str]) -> None:
    told = told_of(*(decision(reason) for reason in reasons))
    assert len(told) <= len(reasons) / LEAST_GAP_S


def test_other_strains_are_news_after_a_while() -> None:
    hot = msgspec.structs.replace(decision(WELL), levers=Levers(causes=("heat",)))
    assert told_of(decision(WELL), hot, every_s=LEAST_GAP_S) == [WELL]
    assert told_of(decision(WELL), hot, every_s=1.0) == []
    assert told_of(hot, hot, every_s=LEAST_GAP_S) == []
