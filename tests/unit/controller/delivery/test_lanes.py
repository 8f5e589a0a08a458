"""Who is sent what, and when: turns, bounds and what is not sent twice."""

from __future__ import annotations

from collections import Counter

import msgspec

from controller.delivery.lanes import (
    FIRST_BYTES,
    GONE_S,
    MOST_BYTES_OF_ONE,
    PATIENCE_OF_OLD_S,
    WINDOW_OF_OLD,
    Lanes,
    Turn,
)
from wire.delivery import NOTHING_LEFT, ChunkRequest

PIECE = 128 * 1024
BLOB = "a" * 64


def ask(
    lanes: Lanes,
    device: str,
    indices: range | tuple[int, ...],
    now_s: float = 0.0,
    *,
    number: int | None = 1,
    seen: tuple[int, int] | None = None,
    patience_s: float = 10.0,
    size_bytes: int = PIECE,
) -> None:
    request = ChunkRequest(
        device=device,
        sha256=BLOB,
        chunk_bytes=size_bytes,
        indices=tuple(indices),
        number=msgspec.UNSET if number is None else number,
        seen=seen or msgspec.UNSET,
        patience_s=msgspec.UNSET if number is None else patience_s,
    )
    lanes.ask(request, (size_bytes,) * len(request.indices), now_s)


def send(lanes: Lanes, now_s: float = 0.0, most: int = 1000) -> list[Turn]:
    """Send what may be sent."""
    turns: list[Turn] = []
    while len(turns) < most and (turn := lanes.next(now_s)) is not None:
        lanes.sent(turn, now_s)
        turns.append(turn)
    return turns


def places(turns: list[Turn]) -> list[int]:
    return [turn.wanted.piece.position for turn in turns]


def test_what_is_asked_for_is_sent_in_its_order() -> None:
    lanes = Lanes()
    ask(lanes, "d", (5, 3))
    assert places(send(lanes)) == [5, 3]
    assert lanes.next(0.0) is None


def test_devices_take_turns_whatever_they_ask_for() -> None:
    lanes = Lanes()
    ask(lanes, "much", range(2))
    ask(lanes, "small", range(64), size_bytes=8 * 1024)
    ask(lanes, "little", (0,))
    sent = Counter[str]()
    order: list[str] = []
    for turn in send(lanes, most=10):
        sent[turn.device] += turn.wanted.size_bytes
        if order[-1:] != [turn.device]:
            order.append(turn.device)
    assert order == ["much", "small", "little"]
    # A small message takes the sender as long as one of twice its size.
    assert sent == {"much": PIECE, "small": PIECE // 2, "little": PIECE}


def test_no_more_is_under_way_than_was_acknowledged() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(64))
    first = send(lanes)
    assert sum(turn.wanted.size_bytes for turn in first) == FIRST_BYTES
    ask(lanes, "d", (100,), number=2, seen=(1, 0))
    # One came: as much may follow, and as much more may be under way.
    assert places(send(lanes)) == [2, 3]
    for number in range(3, 80):
        ask(lanes, "d", range(100 * number, 100 * number + 60), number=number, seen=(1, 63))
        send(lanes)
        assert lanes.under_way_bytes <= MOST_BYTES_OF_ONE


def test_the_broker_never_holds_more_than_the_bound_and_one_piece_for_each() -> None:
    lanes = Lanes(most_bytes=4 * PIECE)
    for number in range(6):
        ask(lanes, f"d{number}", range(10))
    assert [turn.device for turn in send(lanes)] == [f"d{number}" for number in range(6)]
    ask(lanes, "d2", (), number=2, seen=(1, 0))
    assert [turn.device for turn in send(lanes)] == ["d2"]
    assert lanes.under_way_bytes == 6 * PIECE


def test_what_waits_or_is_under_way_is_not_sent_twice() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(8))
    assert places(send(lanes)) == [0, 1]
    ask(lanes, "d", range(8), 1.0, number=2)
    assert lanes.spared == 8
    ask(lanes, "d", (), 1.0, number=2, seen=(1, 1))
    assert places(send(lanes, 1.0)) == [2, 3, 4, 5]


def test_what_was_waited_for_in_vain_is_sent_again() -> None:
    lanes = Lanes()
    ask(lanes, "d", (0,), patience_s=3.0)
    send(lanes)
    # Its patience of 3 s has run out; now it has twice as much.
    ask(lanes, "d", (0,), 3.0, number=2, patience_s=6.0)
    assert places(send(lanes, 3.0)) == [0]


def test_what_a_later_answer_shows_to_be_lost_is_sent_again_at_once() -> None:
    lanes = Lanes()
    ask(lanes, "d", (0,))
    ask(lanes, "d", (1,), number=2)
    send(lanes)
    ask(lanes, "d", (0,), 0.1, number=3, seen=(2, 1))
    assert places(send(lanes, 0.1)) == [0]


def test_after_a_new_connection_nothing_is_under_way() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(8))
    send(lanes)
    ask(lanes, "d", range(4), 0.1, number=2, seen=(1, NOTHING_LEFT))
    assert places(send(lanes, 0.1)) == [0, 1]
    assert lanes.under_way_bytes == 2 * PIECE


def test_an_agent_that_starts_again_counts_from_the_beginning() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(8), number=900)
    send(lanes)
    ask(lanes, "d", (7,), 1.0, number=1)
    assert places(send(lanes, 1.0)) == [7]
    assert lanes.under_way_bytes == PIECE


def test_what_the_device_does_not_wait_for_any_more_is_dropped() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(3), patience_s=2.0)
    # As long as something comes, it waits for the rest.
    assert places(send(lanes, 1.9, most=1)) == [0]
    assert places(send(lanes, 3.8, most=1)) == [1]
    ask(lanes, "d", (), 3.9, number=2, seen=(1, 1))
    assert send(lanes, 5.9) == []
    assert lanes.dropped == 1


def test_what_is_never_acknowledged_is_forgotten() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(2))
    send(lanes)
    for now_s in range(1, int(GONE_S)):
        ask(lanes, "d", (), float(now_s))
        lanes.sweep(float(now_s))
    assert lanes.under_way_bytes == 2 * PIECE
    lanes.sweep(GONE_S)
    assert lanes.under_way_bytes == 0
    assert len(lanes) == 0


def test_a_device_that_is_not_heard_of_any_more_has_nothing_under_way() -> None:
    lanes = Lanes()
    ask(lanes, "d", range(2), patience_s=10.0)
    send(lanes)
    lanes.sweep(19.9)
    assert lanes.under_way_bytes == 2 * PIECE
    lanes.sweep(20.0)
    assert lanes.under_way_bytes == 0


def test_those_who_never_acknowledge_leave_the_others_their_share() -> None:
    lanes = Lanes(most_bytes=32 * PIECE)
    for number in range(10):
        ask(lanes, f"silent-{number}", range(64), number=None)
    send(lanes)
    ask(lanes, "honest", range(2))
    assert [turn.device for turn in send(lanes)].count("honest") >= 1
    held = lanes.under_way_bytes
    assert held <= 33 * PIECE
    # Half a minute later nothing has come of the silent ones.
    lanes.sweep(2 * PATIENCE_OF_OLD_S)
    assert lanes.under_way_bytes < held / 10


def test_a_large_piece_that_does_not_fit_keeps_no_small_one_waiting() -> None:
    lanes = Lanes(most_bytes=4 * PIECE)
    ask(lanes, "a", range(3))
    send(lanes)
    ask(lanes, "b", (0,))
    ask(lanes, "c", (0, 1), size_bytes=8 * 1024)
    assert [turn.device for turn in send(lanes)] == ["b", "c", "c"]


def test_what_is_asked_for_again_while_it_waits_is_not_dropped_as_stale() -> None:
    lanes = Lanes()
    ask(lanes, "d", (0,), patience_s=2.0)
    ask(lanes, "d", (0,), 1.9, number=2, patience_s=4.0)
    assert places(send(lanes, 5.0)) == [0]


def test_an_older_agent_gets_its_window_and_each_chunk_once() -> None:
    lanes = Lanes()
    ask(lanes, "old", range(WINDOW_OF_OLD), number=None)
    assert places(send(lanes)) == list(range(WINDOW_OF_OLD))
    for now_s in (2.0, 4.0, 6.0):  # it asks for all of its window every 2 s
        ask(lanes, "old", range(WINDOW_OF_OLD), now_s, number=None)
        assert send(lanes, now_s) == []
    ask(lanes, "old", range(WINDOW_OF_OLD, 2 * WINDOW_OF_OLD), 7.0, number=None)
    assert len(send(lanes, 7.0)) == WINDOW_OF_OLD
    ask(lanes, "old", (9,), 7.0 + PATIENCE_OF_OLD_S, number=None)
    assert places(send(lanes, 7.0 + PATIENCE_OF_OLD_S)) == [9]


def test_one_device_cannot_fill_the_lanes() -> None:
    lanes = Lanes()
    for number in range(1, 1000):
        ask(lanes, "d", range(64 * number, 64 * number + 64), number=number)
    ask(lanes, "other", (1,))
    assert "other" in [turn.device for turn in send(lanes, most=3)]
