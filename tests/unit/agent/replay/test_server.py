"""The server: no request is lost, none overtakes, and waits are those of queueing theory."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.requests import Request, Requests, arrivals
from agent.replay.server import (
    GAP_WAIT_S,
    QUEUE_REQUESTS,
    Answer,
    Arrived,
    Backlog,
    Passage,
    Service,
)

DEADLINE_MS = 200.0
QUICK = Service("quick", 0.9, 0.01)
SLOW = Service("slow", 1.0, 0.1)


def passed(
    *ticks: tuple[tuple[float, ...], Service | None], period_s: float = 1.0
) -> list[Passage]:
    """Return the passages of ticks with requests at given times, all of the median."""
    found, backlog = [], Backlog()
    for times, service in ticks:
        arrived = Arrived(tuple(Request(at_s, 1.0) for at_s in times))
        found.append(arrived.passed(backlog, service, period_s=period_s, deadline_ms=DEADLINE_MS))
        backlog = found[-1].backlog
    return found


def latencies(passage: Passage) -> list[float]:
    return [answer.latency_ms for answer in passage.answers]


def test_a_few_requests_by_hand() -> None:
    (one,) = passed(((0.2, 0.25, 0.6), SLOW))
    assert [a.started_s for a in one.answers] == pytest.approx([0.2, 0.3, 0.6])
    assert latencies(one) == pytest.approx([100.0, 150.0, 100.0])
    assert (one.requests, one.refused, one.late) == (3, 0, 0)
    assert one.busy_s == one.compute_s == pytest.approx(0.3)
    assert one.latency_ms == pytest.approx(350.0 / 3)
    assert (one.retained, one.retained_in_time) == (3.0, 3.0)
    assert one.log_variance == pytest.approx(0.0, abs=1e-12), "a wait is no slow answer"


def test_how_much_service_times_differ_is_told_without_the_waits() -> None:
    requests = tuple(Request(0.1, factor) for factor in (0.5, 1.0, 2.0))
    one = Arrived(requests).passed(Backlog(), SLOW, period_s=1.0, deadline_ms=DEADLINE_MS)
    assert latencies(one) == pytest.approx([50.0, 150.0, 350.0])
    assert one.log_variance == pytest.approx(
        statistics.variance(math.log(factor) for factor in (0.5, 1.0, 2.0))
    )


def test_an_answer_counts_in_the_tick_in_which_it_is_ready() -> None:
    first, second = passed(((0.95,), SLOW), ((), SLOW))
    assert first.answers == ()
    assert first.busy_s == pytest.approx(0.05)
    assert first.backlog.requests == 1
    assert latencies(second) == pytest.approx([100.0])
    assert second.requests == 0
    assert second.busy_s == pytest.approx(0.05)
    assert second.compute_s == pytest.approx(0.1)


def test_what_waits_at_a_switch_is_served_by_the_new_variant() -> None:
    first, second = passed(((0.85, 0.9, 0.95), SLOW), ((), QUICK))
    assert [a.variant for a in (*first.answers, *second.answers)] == ["slow", "slow", "quick"]
    assert second.retained == pytest.approx(1.0 + 0.9)


def test_a_request_that_would_start_at_the_end_starts_in_the_next_tick() -> None:
    first, second = passed(((0.9, 0.95), SLOW), ((), QUICK))
    assert [a.variant for a in (*first.answers, *second.answers)] == ["slow", "quick"]


def test_a_full_queue_refuses() -> None:
    (one,) = passed(((0.0,) * (QUEUE_REQUESTS + 11), Service("slow", 1.0, 10.0)))
    assert (one.refused, one.backlog.requests) == (10, QUEUE_REQUESTS + 1)


def test_a_place_is_free_again_when_a_request_starts() -> None:
    times = (*(0.0,) * (QUEUE_REQUESTS + 1), 0.5)
    (one,) = passed((times, Service("slow", 1.0, 0.5)))
    assert one.refused == 0


def test_during_a_handover_requests_wait_as_long_as_the_agent_lets_them() -> None:
    gap, after = passed(((0.5, 0.6), None), ((), QUICK))
    assert (gap.answers, gap.backlog.requests) == ((), 2)
    assert latencies(after) == pytest.approx([510.0, 420.0])
    ticks = [((0.5,), None), *[((), None)] * 20]
    refused = [p.refused for p in passed(*ticks)]
    assert sum(refused) == 1
    assert refused.index(1) == int(GAP_WAIT_S)


def test_what_is_being_served_ends_during_a_handover() -> None:
    _, gap = passed(((0.95,), SLOW), ((0.0,), None))
    assert [a.variant for a in gap.answers] == ["slow"]
    assert len(gap.backlog.waiting) == 1


def test_where_nothing_answers_all_are_refused() -> None:
    before = Backlog(Answer("slow", 1.0, -0.1, -0.05, 0.05), (Request(-0.01, 1.0),))
    lost = Arrived((Request(0.5, 1.0),)).lost(before)
    assert (lost.requests, lost.refused, lost.backlog.requests) == (1, 3, 0)


def test_the_retention_of_an_unknown_variant_is_unknown() -> None:
    (one,) = passed(((0.1,), Service("new", None, 0.01)))
    assert (one.retained, one.retained_in_time) == (None, None)
    (late,) = passed(((0.1,), Service("new", None, 0.5)))
    assert (late.late, late.retained, late.retained_in_time) == (1, None, 0.0)


services = st.one_of(
    st.none(),
    st.builds(Service, st.sampled_from("ab"), st.just(1.0), st.floats(1e-3, 3.0)),
)
processes = st.builds(
    Requests,
    arrivals=st.sampled_from(["regular", "poisson", "bursts"]),
    seed=st.integers(0, 1000),
    service_sigma=st.floats(0.0, 1.0),
    outlier_share=st.floats(0.0, 1.0),
)
loads = st.lists(st.tuples(st.floats(0.0, 200.0), services), min_size=1, max_size=12)


@given(processes, loads)
def test_each_request_is_answered_refused_or_still_there(
    process: Requests, load: list[tuple[float, Service | None]]
) -> None:
    backlog, arrived, refused, answered, busy_s = Backlog(), 0, 0, 0, 0.0
    ends: list[float] = []
    for tick, (requests, (_, service)) in enumerate(
        zip(arrivals(process, [rate for rate, _ in load], 1.0), load, strict=True)
    ):
        one = Arrived(requests or ()).passed(backlog, service, period_s=1.0, deadline_ms=100.0)
        backlog, arrived, refused = one.backlog, arrived + one.requests, refused + one.refused
        answered, busy_s = answered + len(one.answers), one.busy_s
        assert arrived == refused + answered + backlog.requests
        assert 0.0 <= busy_s <= 1.0 + 1e-9
        assert len(backlog.waiting) <= QUEUE_REQUESTS
        assert 0 <= one.late <= len(one.answers)
        for a in one.answers:
            assert a.arrived_s <= a.started_s + 1e-9 <= a.ready_s + 2e-9
            assert 0.0 <= a.ready_s <= 1.0
            ends += [tick + a.started_s, tick + a.ready_s]
    # One server: each starts when the one before it is done, or later.
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(ends))


@given(processes, loads, loads)
def test_whoever_serves_the_same_requests_arrive(
    process: Requests,
    load: list[tuple[float, Service | None]],
    other: list[tuple[float, Service | None]],
) -> None:
    rates = [rate for rate, _ in load]

    def met(variants: list[Service | None]) -> list[tuple[Request, ...]]:
        backlog, seen = Backlog(), []
        for requests, service in zip(arrivals(process, rates, 1.0), variants, strict=True):
            arrived = Arrived(requests or ())
            backlog = arrived.passed(backlog, service, period_s=1.0, deadline_ms=100.0).backlog
            seen.append(arrived.requests)
        return seen

    others = [service for _, service in itertools.islice(itertools.cycle(other), len(load))]
    assert met([service for _, service in load]) == met(others)


def mean_wait(process: Requests, use: float, ticks: int, **service: float) -> tuple[float, float]:
    """Return the mean wait in median service times, and its standard error by batch means."""
    backlog, batch, batches = Backlog(), [], []
    rate = use / service["mean"] * 10.0
    for requests in arrivals(process, [rate] * ticks, 1.0):
        one = Arrived(requests or ()).passed(
            backlog, Service("one", 1.0, 0.1), period_s=1.0, deadline_ms=100.0
        )
        backlog = one.backlog
        batch += [(a.started_s - a.arrived_s) / 0.1 for a in one.answers]
        if len(batch) >= 1500:
            batches.append(statistics.mean(batch))
            batch = []
    return statistics.mean(batches), statistics.stdev(batches) / math.sqrt(len(batches))


@pytest.mark.parametrize(("use", "sigma"), [(0.5, 0.0), (0.7, 0.0), (0.6, 0.5), (0.6, 0.8)])
def test_waits_are_those_of_pollaczek_and_khinchine(use: float, sigma: float) -> None:
    # Kleinrock, volume 1, section 5.6: rate * E[S^2] / (2 (1 - use)); M/D/1 where sigma is 0.
    # With sigma 0.8 the coefficient of variation is 0.95, about that of M/M/1.
    process = Requests(arrivals="poisson", seed=7, service_sigma=sigma)
    mean, second = math.exp(sigma**2 / 2), math.exp(2 * sigma**2)
    found, error = mean_wait(process, use, 5000, mean=mean)
    assert abs(found - use / mean * second / (2 * (1 - use))) < 4.0 * error
    assert error < 0.12 * found


def test_waits_behind_bursts_are_those_of_batch_arrivals() -> None:
    # M^[X]/D/1: the wait of the batches before, as if each were one customer, and that of the
    # requests of the same batch before one, (E[X^2] - E[X]) / (2 E[X]) services: for geometric
    # sizes with mean m that is m - 1. Kleinrock, volume 1, exercise 5.11 and section 5.6.
    use, size = 0.5, 2.0
    process = Requests(arrivals="bursts", seed=3, service_sigma=0.0, burst_size=size)
    second = 2 * size**2 - size
    expected = use / size * second / (2 * (1 - use)) + size - 1
    found, error = mean_wait(process, use, 5000, mean=1.0)
    assert abs(found - expected) < 4.0 * error
    assert error < 0.12 * found
