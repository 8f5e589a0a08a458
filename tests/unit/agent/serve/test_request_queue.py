"""Who is next, who cannot wait, and who has to go."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.errors import DeadlineError, WorkerBusyError
from agent.serve.request_queue import (
    DEFAULT_PRIORITY,
    DEFER_S,
    JOINED_BYTES,
    LEAST_URGENT,
    MAX_RETRY_AFTER_S,
    MOST_URGENT,
    RequestQueue,
    Ticket,
    check_time,
    level_of,
)

levels = st.integers(MOST_URGENT, LEAST_URGENT)
times_s = st.integers(0, 100_000).map(lambda ms: ms / 1000)


def queue_of(*tickets: Ticket, places: int = 64) -> RequestQueue[Ticket]:
    queue: RequestQueue[Ticket] = RequestQueue(places)
    for ticket in tickets:
        queue.enter(ticket)
    return queue


def ran(
    queue: RequestQueue[Ticket], each_s: float, *, count: int = 1, joined: bool = False
) -> None:
    """Let a turn of so many requests go by in an empty queue."""
    for _ in range(count):
        queue.enter(Ticket(arrived_s=0))
    queue.begin(0.0, count)
    queue.end(each_s * count, joined=joined)


def test_priorities_are_triton_s() -> None:
    assert [level_of(n) for n in (0, 1, 2, 3, 2**64 - 1)] == [DEFAULT_PRIORITY, 1, 2, 3, 9]


@given(st.lists(st.tuples(times_s, levels), max_size=40))
def test_nobody_is_overtaken_for_longer_than_the_levels_between_them(
    arrivals: list[tuple[float, int]],
) -> None:
    queue = queue_of(*(Ticket(arrived_s=at, priority=level) for at, level in arrivals))
    order: list[Ticket] = []
    while len(queue):
        chosen, late = queue.begin(0.0, 1)
        assert len(chosen) == 1
        assert late == []
        order += chosen
    assert len(order) == len(arrivals)
    for position, first in enumerate(order):
        for second in order[position + 1 :]:
            if first.priority == second.priority:
                assert first.arrived_s <= second.arrived_s
            ahead_s = DEFER_S * (second.priority - first.priority)
            assert first.arrived_s <= second.arrived_s + ahead_s + 1e-9


def test_the_urgent_go_first_and_the_others_wait_for_them_only_so_long() -> None:
    low = Ticket(arrived_s=0.0, priority=3)
    usual = Ticket(arrived_s=0.1)
    urgent = Ticket(arrived_s=0.2, priority=1)
    late_urgent = Ticket(arrived_s=2 * DEFER_S + 0.1, priority=1)
    chosen, _ = queue_of(low, usual, urgent, late_urgent).begin(3.0, 8)
    assert chosen == [urgent, usual, low, late_urgent]


def test_a_full_queue_gives_the_place_of_the_least_urgent() -> None:
    low = Ticket(arrived_s=0.0, priority=5)
    lower = Ticket(arrived_s=0.0, priority=6)
    queue = queue_of(low, lower, places=2)
    assert queue.wait(Ticket(arrived_s=1.0), 1.0) is lower
    assert queue.wait(Ticket(arrived_s=1.0), 1.0) is low
    with pytest.raises(WorkerBusyError):
        queue.wait(Ticket(arrived_s=1.0), 1.0)
    with pytest.raises(WorkerBusyError):
        queue.wait(Ticket(arrived_s=1.0, priority=3), 1.0)
    assert len(queue) == 2


def test_a_queue_without_places_takes_only_who_need_not_wait() -> None:
    queue = queue_of(places=0)
    with pytest.raises(WorkerBusyError) as info:
        queue.wait(Ticket(arrived_s=0.0, priority=1), 0.0)
    assert info.value.retry_after_s == 1


@given(
    st.lists(st.tuples(times_s, levels, st.floats(0, 200)), max_size=60),
    st.integers(0, 8),
    st.floats(0.001, 3),
)
def test_the_queue_is_bounded_and_sheds_only_for_the_more_urgent(
    arrivals: list[tuple[float, int, float]], places: int, each_s: float
) -> None:
    queue = queue_of(places=places)
    ran(queue, each_s)
    for at, level, deadline in sorted(arrivals):
        ticket = Ticket(arrived_s=at, priority=level, deadline_s=deadline)
        with contextlib.suppress(WorkerBusyError):
            shed = queue.wait(ticket, at)
            assert shed is None or shed.priority > level
        assert len(queue) <= places
        assert 1 <= queue.retry_after_s(at) <= MAX_RETRY_AFTER_S


def test_who_would_surely_come_too_late_is_refused_at_once() -> None:
    queue = queue_of()
    ran(queue, 1.0)
    for number in range(4):
        queue.enter(Ticket(arrived_s=number / 100))
    assert queue.wait_s(Ticket(arrived_s=1.0), 1.0) == pytest.approx(4.0)
    with pytest.raises(WorkerBusyError) as info:
        queue.wait(Ticket(arrived_s=1.0, deadline_s=2.9), 1.0)
    assert info.value.retry_after_s == 4
    assert queue.wait(Ticket(arrived_s=1.0, deadline_s=3.1), 1.0) is None
    # More urgent, so that only the present turn is before it.
    assert queue.wait(Ticket(arrived_s=0.9, deadline_s=1.1, priority=1), 1.0) is None


def test_a_wait_that_was_never_measured_refuses_nobody() -> None:
    queue = queue_of(*(Ticket(arrived_s=0.0) for _ in range(9)))
    assert queue.wait(Ticket(arrived_s=0.0, deadline_s=1e-9), 0.0) is None


def test_the_present_turn_counts_for_what_is_left_of_it() -> None:
    queue = queue_of()
    ran(queue, 2.0)
    queue.enter(Ticket(arrived_s=10.0))
    queue.begin(10.0, 1)
    assert queue.wait_s(Ticket(arrived_s=10.5), 10.5) == pytest.approx(1.5)
    assert queue.wait_s(Ticket(arrived_s=99.0), 99.0) == 0.0
    assert queue.retry_after_s(10.5) == 2


def test_those_whose_time_has_passed_are_not_run() -> None:
    late = Ticket(arrived_s=0.0, deadline_s=4.0)
    due = Ticket(arrived_s=0.0, deadline_s=5.0)
    well = Ticket(arrived_s=0.0, deadline_s=5.1)
    assert queue_of(late, due, well).begin(5.0, 8) == ([well], [late, due])
    assert queue_of(late, due, well).begin(5.0, 1) == ([well], [late, due])
    check_time(well, 5.0)
    with pytest.raises(DeadlineError):
        check_time(due, 5.0)


@given(
    st.lists(st.tuples(st.integers(0, JOINED_BYTES), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 8),
)
def test_a_turn_is_bounded_and_who_must_be_alone_is(
    sizes: list[tuple[int, bool]], most: int
) -> None:
    tickets = [
        Ticket(arrived_s=float(number), size_bytes=size, alone=alone)
        for number, (size, alone) in enumerate(sizes)
    ]
    queue = queue_of(*tickets)
    served: list[Ticket] = []
    while len(queue):
        chosen, _ = queue.begin(0.0, most)
        assert 1 <= len(chosen) <= most
        if len(chosen) > 1:
            assert not any(ticket.alone for ticket in chosen)
            assert sum(ticket.size_bytes for ticket in chosen) <= JOINED_BYTES
        served += chosen
    assert served == tickets


def turn_size(queue: RequestQueue[Ticket], most: int = 8) -> int:
    for _ in range(most):
        queue.enter(Ticket(arrived_s=0.0))
    chosen, _ = queue.begin(0.0, most)
    queue.empty()
    return len(chosen)


def test_slow_requests_share_a_turn_only_where_they_are_joined() -> None:
    slow, quick, joined, unknown = queue_of(), queue_of(), queue_of(), queue_of()
    ran(slow, 0.2, count=2)
    ran(quick, 0.01, count=2)
    ran(joined, 0.2, count=2, joined=True)
    assert turn_size(slow) == 1
    assert turn_size(quick) == 8
    assert turn_size(joined) == 8
    assert turn_size(unknown) == 8


def test_now_and_then_a_turn_is_filled_to_see_whether_joining_pays() -> None:
    queue = queue_of()
    sizes = []
    for _ in range(70):
        sizes.append(turn_size(queue))
        queue.end(0.2 * sizes[-1], joined=False)
    assert sizes.count(8) == 3
    assert sizes.count(1) == 67


def test_who_left_is_not_there_any_more() -> None:
    ticket = Ticket(arrived_s=0.0, deadline_s=math.inf)
    queue = queue_of(ticket)
    assert queue.head is ticket
    assert [queue.leave(ticket), queue.leave(ticket)] == [True, False]
    assert queue.begin(1.0, 8) == ([], [])
    queue.enter(ticket)
    assert queue.empty() == [ticket]
    assert len(queue) == 0
