"""What nobody acknowledged is sent again, ever more seldom, and not by all devices at once."""

from __future__ import annotations

import random

from agent.link.resending import FIRST_S, LAST_S, SPREAD, Resending

KEY = ("boot", 1)


def waits(resending: Resending, times: int) -> list[float]:
    """Send a batch whenever it may be; return the times between."""
    found, now_s = [], 0.0
    for _ in range(times):
        assert resending.may_send(KEY, now_s, has_copies=False)
        resending.note(KEY, now_s)
        low, high = 0.0, 10 * LAST_S
        while high - low > 0.01:
            middle = (low + high) / 2
            late = resending.may_send(KEY, now_s + middle, has_copies=False)
            low, high = (low, middle) if late else (middle, high)
        found.append(round(high, 1))
        now_s += high
    return found


def test_each_wait_is_twice_the_one_before_up_to_a_bound() -> None:
    assert waits(Resending(lambda: 0.5), 6) == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]


def test_waits_are_spread() -> None:
    found = [waits(Resending(random.Random(seed).random), 1)[0] for seed in range(50)]
    assert FIRST_S * (1 - SPREAD) <= min(found) < FIRST_S < max(found) <= FIRST_S * (1 + SPREAD)


def test_nothing_is_sent_while_the_broker_has_copies() -> None:
    resending = Resending()
    assert resending.may_send(KEY, 0.0, has_copies=True), "it was never sent"
    resending.note(KEY, 0.0)
    assert not resending.may_send(KEY, 1e6, has_copies=True)
    assert resending.may_send(KEY, 1e6, has_copies=False)


def test_a_new_connection_begins_with_short_waits() -> None:
    resending = Resending(lambda: 0.5)
    waits(resending, 8)
    resending.begin_anew()
    assert resending.is_repeat(KEY)
    resending.note(KEY, 0.0)
    assert resending.may_send(KEY, FIRST_S, has_copies=False)


def test_what_is_gone_is_forgotten() -> None:
    resending = Resending()
    for number in range(3):
        resending.note(("boot", number), 0.0)
    resending.forget(("boot", 0))
    resending.keep_only([("boot", 1)])
    assert [resending.is_repeat(("boot", number)) for number in range(3)] == [False, True, False]
