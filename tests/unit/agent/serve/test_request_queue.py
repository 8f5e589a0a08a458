"""Who is next, who cannot wait, and who has to go."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.errors import WorkerBusyError
from agent.serve.frames import Asked
from agent.serve.request_queue import (
    AHEAD_BYTES,
    DEFAULT_PRIORITY,
    DEFER_S,
    DEFERRABLE,
    JOINED_BYTES,
    LEAST_URGENT,
    MAX_RETRY_AFTER_S,
    MOST_URGENT,
    QueuedRequest,
    RequestQueue,
)
from agent.serve.router import level_of

levels = st.integers(MOST_URGENT, LEAST_URGENT)
times_s = st.integers(0, 100_000).map(lambda ms: ms / 1000)


def request(
    *,
    arrived_s: float,
    priority: int = DEFAULT_PRIORITY,
    deadline_s: float = math.inf,
    size_bytes: int = 0,
    unbatched: bool = False,
) -> QueuedRequest:
    return QueuedRequest(
        asked=Asked(header_length=None, body=memoryview(b"")),
        arrived_s=arrived_s,
        priority=priority,
        deadline_s=deadline_s,
        size_bytes=size_bytes,
        unbatched=unbatched,
    )


def queue_of(*requests: QueuedRequest, places: int = 64) -> RequestQueue:
    queue: RequestQueue = RequestQueue(places)
    for one in requests:
        queue.enter(one)
    return queue


def ran(queue: RequestQueue, each_s: float, *, count: int = 1, joined: bool = False) -> None:
    """Let a turn of so many requests go by in an empty queue."""
    for _ in range(count):
        queue.enter(request(arrived_s=0))
    queue.begin(0.0, count)
    queue.end(each_s * count, joined=joined)


def test_priorities_are_triton_s() -> None:
    assert [level_of(n) for n in (0, 1, 2, 3, 2**64 - 1)] == [DEFAULT_PRIORITY, 1, 2, 3, 9]


@given(st.lists(st.tuples(times_s, levels), max_size=40))
def test_nobody_is_overtaken_for_longer_than_the_levels_between_them(
    arrivals: list[tuple[float, int]],
) -> None:
    queue = queue_of(*(request(arrived_s=at, priority=level) for at, level in arrivals))
    order: list[QueuedRequest] = []
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
    low = request(arrived_s=0.0, priority=3)
    usual = request(arrived_s=0.1)
    urgent = request(arrived_s=0.2, priority=1)
    late_urgent = request(arrived_s=2 * DEFER_S + 0.1, priority=1)
    chosen, _ = queue_of(low, usual, urgent, late_urgent).begin(3.0, 8)
    assert chosen == [urgent, usual, low, late_urgent]


def test_a_full_queue_gives_the_place_of_the_least_urgent() -> None:
    low = request(arrived_s=0.0, priority=5)
    lower = request(arrived_s=0.0, priority=6)
    queue = queue_of(low, lower, places=2)
    assert queue.wait(request(arrived_s=1.0), 1.0) is lower
    assert queue.wait(request(arrived_s=1.0), 1.0) is low
    with pytest.raises(WorkerBusyError):
        queue.wait(request(arrived_s=1.0), 1.0)
    with pytest.raises(WorkerBusyError):
        queue.wait(request(arrived_s=1.0, priority=3), 1.0)
    assert len(queue) == 2


def test_deferrable_requests_go_last_and_lose_their_place_first() -> None:
    deferrable = request(arrived_s=0.0, priority=DEFERRABLE)
    lowest = request(arrived_s=0.5, priority=LEAST_URGENT)
    queue = queue_of(deferrable, lowest, places=2)
    assert queue.head is lowest
    assert queue.wait(request(arrived_s=1.0, priority=LEAST_URGENT), 1.0) is deferrable
    with pytest.raises(WorkerBusyError):
        queue.wait(request(arrived_s=1.0, priority=DEFERRABLE), 1.0)


def test_a_queue_without_places_takes_only_who_need_not_wait() -> None:
    queue = queue_of(places=0)
    with pytest.raises(WorkerBusyError) as info:
        queue.wait(request(arrived_s=0.0, priority=1), 0.0)
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
        one = request(arrived_s=at, priority=level, deadline_s=deadline)
        with contextlib.suppress(WorkerBusyError):
            shed = queue.wait(one, at)
            assert shed is None or shed.priority > level
        assert len(queue) <= places
        assert 1 <= queue.retry_after_s(at) <= MAX_RETRY_AFTER_S


def test_who_would_surely_come_too_late_is_refused_at_once() -> None:
    queue = queue_of()
    ran(queue, 1.0)
    for number in range(4):
        queue.enter(request(arrived_s=number / 100))
    assert queue.wait_s(request(arrived_s=1.0), 1.0) == pytest.approx(4.0)
    with pytest.raises(WorkerBusyError) as info:
        queue.wait(request(arrived_s=1.0, deadline_s=2.9), 1.0)
    assert info.value.retry_after_s == 4
    assert queue.wait(request(arrived_s=1.0, deadline_s=3.1), 1.0) is None
    # More urgent, so that only the present turn is before it.
    assert queue.wait(request(arrived_s=0.9, deadline_s=1.1, priority=1), 1.0) is None


def test_a_wait_that_was_never_measured_refuses_nobody() -> None:
    queue = queue_of(*(request(arrived_s=0.0) for _ in range(9)))
    assert queue.wait(request(arrived_s=0.0, deadline_s=1e-9), 0.0) is None


def test_the_present_turn_counts_for_what_is_left_of_it() -> None:
    queue = queue_of()
    ran(queue, 2.0)
    queue.enter(request(arrived_s=10.0))
    queue.begin(10.0, 1)
    assert queue.wait_s(request(arrived_s=10.5), 10.5) == pytest.approx(1.5)
    assert queue.wait_s(request(arrived_s=99.0), 99.0) == 0.0
    assert queue.retry_after_s(10.5) == 2


def test_those_whose_time_has_passed_are_not_run() -> None:
    late = request(arrived_s=0.0, deadline_s=4.0)
    due = request(arrived_s=0.0, deadline_s=5.0)
    well = request(arrived_s=0.0, deadline_s=5.1)
    assert queue_of(late, due, well).begin(5.0, 8) == ([well], [late, due])
    assert queue_of(late, due, well).begin(5.0, 1) == ([well], [late, due])


@given(
    st.lists(st.tuples(st.integers(0, JOINED_BYTES), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 8),
)
def test_a_turn_is_bounded_and_what_must_not_be_batched_is_not(
    sizes: list[tuple[int, bool]], max_batch: int
) -> None:
    requests = [
        request(arrived_s=float(number), size_bytes=size, unbatched=unbatched)
        for number, (size, unbatched) in enumerate(sizes)
    ]
    queue = queue_of(*requests)
    served: list[QueuedRequest] = []
    while len(queue):
        chosen, _ = queue.begin(0.0, max_batch)
        assert 1 <= len(chosen) <= max_batch
        if len(chosen) > 1:
            assert not any(one.unbatched for one in chosen)
            assert sum(one.size_bytes for one in chosen) <= JOINED_BYTES
        served += chosen
    assert served == requests


def turn_size(queue: RequestQueue, max_batch: int = 8) -> int:
    for _ in range(max_batch):
        queue.enter(request(arrived_s=0.0))
    chosen, _ = queue.begin(0.0, max_batch)
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
    one = request(arrived_s=0.0, deadline_s=math.inf)
    queue = queue_of(one)
    assert queue.head is one
    assert [queue.leave(one), queue.leave(one)] == [True, False]
    assert queue.begin(1.0, 8) == ([], [])
    queue.enter(one)
    assert queue.empty() == [one]
    assert len(queue) == 0


def test_a_long_deferrable_request_lets_no_later_one_be_refused() -> None:
    queue = queue_of()
    ran(queue, 0.01, count=4)
    queue.enter(request(arrived_s=0.0, priority=DEFERRABLE))
    queue.begin(0.0, 1)
    queue.end(20.0, joined=False)
    assert queue.usual_s == pytest.approx(0.01)
    queue.enter(request(arrived_s=20.0))
    queue.begin(20.0, 1)
    assert queue.wait(request(arrived_s=20.0, deadline_s=20.1), 20.0) is None


def ahead_of(queue: RequestQueue, *requests: QueuedRequest, max_batch: int = 1) -> int:
    """Let a request run, let others come, and return how many are sent ahead."""
    queue.enter(request(arrived_s=0.0))
    queue.begin(0.0, 1)
    for one in requests:
        queue.enter(one)
    return len(queue.begin_ahead(0.0, max_batch))


def quick(count: int = 2) -> RequestQueue:
    queue = queue_of()
    ran(queue, 0.005, count=count)
    return queue


def test_the_next_request_is_sent_ahead_of_its_turn() -> None:
    queue = quick()
    nexts = [request(arrived_s=float(number)) for number in range(3)]
    assert ahead_of(queue, *nexts) == 1
    assert len(queue) == 3
    assert queue.head is nexts[1]
    assert queue.wait_s(request(arrived_s=9.0), 0.0) == pytest.approx(4 * 0.005)
    assert not queue.leave(nexts[0])
    queue.end(0.005, joined=False)
    queue.begin_what_was_ahead(0.005)
    assert nexts[0].began_s == 0.005
    assert len(queue) == 2
    assert ahead_of(quick(), *(request(arrived_s=0.0) for _ in range(9)), max_batch=8) == 8


def test_nothing_is_sent_ahead_that_may_still_be_overtaken_joined_or_late() -> None:
    slow, unknown, joined = queue_of(), queue_of(), queue_of()
    ran(slow, 0.06, count=2)
    ran(joined, 0.005, count=2, joined=True)
    assert ahead_of(slow, request(arrived_s=0.0)) == 0
    assert ahead_of(unknown, request(arrived_s=0.0)) == 0
    assert ahead_of(joined, request(arrived_s=0.0), max_batch=8) == 0
    assert ahead_of(quick(), request(arrived_s=0.0, priority=DEFERRABLE)) == 0
    assert ahead_of(quick(), request(arrived_s=0.0, size_bytes=AHEAD_BYTES + 1)) == 0
    assert ahead_of(quick(), request(arrived_s=0.0, deadline_s=0.004)) == 0
    assert ahead_of(quick(), request(arrived_s=0.0, deadline_s=0.006)) == 1
    alone = request(arrived_s=0.0, unbatched=True)
    assert ahead_of(quick(), request(arrived_s=0.0), alone, max_batch=8) == 1
