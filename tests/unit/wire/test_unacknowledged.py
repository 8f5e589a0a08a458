"""What a broker says of messages, and what waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from wire.unacknowledged import OVERHEAD_BYTES, Unacknowledged


@dataclass
class Sent:
    """A receipt."""

    mid: int
    is_out: bool = False

    def is_published(self) -> bool:
        return self.is_out


def test_what_the_broker_says_is_kept_by_topic() -> None:
    sent = Unacknowledged(10_000)
    for mid, topic in enumerate(["a", "b", "c", "a"], start=1):
        sent.add(topic, b"", Sent(mid))
    sent.answered(1, denied=False, unheard=True)
    sent.answered(2, denied=True, unheard=False)
    sent.answered(3, denied=False, unheard=False)
    sent.answered(77, denied=True, unheard=False)
    assert (sent.denied, sent.unheard) == ({"b"}, {"a"})
    sent.answered(4, denied=False, unheard=False)
    assert sent.unheard == set(), "somebody has subscribed since"
    sent.add("d", b"", Sent(2))
    sent.answered(2, denied=True, unheard=False)
    assert sent.denied == {"b", "d"}, "numbers are used again"
    sent.begin()
    assert (sent.denied, sent.unheard) == (set(), set())


def test_room_and_what_waits_follow_the_order_in_which_a_broker_acknowledges() -> None:
    sent = Unacknowledged(2 * OVERHEAD_BYTES)
    first, second = Sent(1), Sent(2)
    sent.add("a", b"", first)
    assert sent.has_room(b"")
    sent.add("b", b"", second)
    assert not sent.has_room(b"")
    assert sent.is_waiting("a")
    first.is_out = True
    assert sent.has_room(b"")
    assert not sent.is_waiting("a")
    assert sent.is_waiting("b")
