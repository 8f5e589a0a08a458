"""What came of serving since the last decision."""

from __future__ import annotations

import math
import statistics
import threading

import msgspec
import pytest

from agent.select.batches import WINDOW_S, Together
from agent.select.estimates import Observed
from agent.select.meter import MAX_VARIANTS, MAX_WINDOWS, Meter, Served, observed
from agent.serve.answered import Answered, Outcome
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock


def count(meter: Meter, record: Answered) -> None:
    """Let a request come and get its answer."""
    meter.came()
    meter.count(record)


def answer(
    meter: Meter, variant: str = "a", latency_ms: float = 30.0, compute_ms: float = 20.0
) -> None:
    count(meter, answered(variant, total_s=latency_ms / 1000, compute_s=compute_ms / 1000))


REFUSED = answered(None, outcome=Outcome.REFUSED)


def test_what_is_counted_is_counted_once() -> None:
    meter = Meter(FakeClock())
    answer(meter)
    answer(meter, latency_ms=50.0)
    count(meter, REFUSED)
    since, variants = meter.take()
    assert (since.requests, since.answered) == (3.0, 2.0)
    assert since.compute_s == pytest.approx(0.04)
    assert since.latency_s == pytest.approx(0.08)
    assert variants == {"a"}
    assert meter.take() == (Served(), frozenset())


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED])
def test_a_request_without_a_good_answer_is_a_request_and_no_more(outcome: Outcome) -> None:
    meter = Meter(FakeClock())
    count(meter, answered(outcome=outcome))
    refused = float(outcome is Outcome.REFUSED)
    assert meter.take() == (Served(requests=1.0, refused=refused), frozenset())


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.UNKNOWN_MODEL])
def test_a_request_that_is_wrong_is_no_demand(outcome: Outcome) -> None:
    meter = Meter(FakeClock())
    answer(meter)
    for _ in range(20):
        count(meter, answered(outcome=outcome))
    assert meter.take()[0].requests == 1.0


def test_what_was_shed_was_not_in_time() -> None:
    meter = Meter(FakeClock())
    for _ in range(3):
        answer(meter)
        count(meter, REFUSED)
    seen = observed(meter.take(), "a", alone_ms=20.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    assert (seen.requests, seen.answered, seen.in_time) == (6.0, 3.0, 1.5)


def test_deferrable_requests_are_load_and_no_demand() -> None:
    meter = Meter(FakeClock())
    meter.count(answered("a", compute_s=0.25, deferred=True))
    meter.count(answered("a", outcome=Outcome.UNKNOWN_MODEL, deferred=True))
    since = meter.take()
    assert since == (Served(deferred_s=0.25), frozenset())
    seen = observed(since, "a", alone_ms=20.0, held_bytes=0, period_s=1.0, cpu_share=0.5)
    assert seen is not None
    assert (seen.requests, seen.answered, seen.own_load) == (0.0, 0.0, 0.125)


def test_a_request_for_another_model_is_none_of_ours() -> None:
    meter = Meter(FakeClock())
    count(meter, answered(outcome=Outcome.UNKNOWN_MODEL))
    assert meter.take() == (Served(), frozenset())
    assert meter.served("a") == Served()


def test_what_was_served_since_the_start_goes_on_by_variant() -> None:
    meter = Meter(FakeClock())
    for variant in ("a", "b", "a"):
        answer(meter, variant)
        meter.take()
    count(meter, REFUSED)
    served = meter.served("a")
    assert (served.requests, served.answered) == (4.0, 2.0)
    assert served.compute_s == pytest.approx(0.04)
    assert meter.served("b").answered == 1.0
    assert meter.served(None) == Served(requests=4.0)


def test_variants_that_are_remembered_are_bounded() -> None:
    meter = Meter(FakeClock())
    for number in range(MAX_VARIANTS + 1):
        answer(meter, f"v{number}")
    assert meter.served("v0").answered == 0.0
    assert meter.served(f"v{MAX_VARIANTS}").answered == 1.0


def test_nothing_is_lost_between_threads() -> None:
    meter = Meter(FakeClock())
    taken: list[float] = []

    def ask() -> None:
        for _ in range(500):
            answer(meter)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken.append(meter.take()[0].answered)
    taken.append(meter.take()[0].answered)
    assert sum(taken) == 2000.0


def test_a_period_in_which_another_variant_answered_is_mixed() -> None:
    meter = Meter(FakeClock())
    answer(meter, "a")
    answer(meter, "b")
    seen = observed(meter.take(), "b", alone_ms=10.0, held_bytes=5, period_s=2.0, cpu_share=0.25)
    assert seen is not None
    assert seen.mixed
    assert seen.own_load == pytest.approx(0.04 / 2.0 * 0.25)
    assert seen.latency_ms == pytest.approx(30.0)


@pytest.mark.parametrize(("variant", "period_s"), [(None, 1.0), ("a", 0.0)])
def test_without_a_worker_or_time_nothing_was_seen(variant: str | None, period_s: float) -> None:
    since = (Served(requests=3.0), frozenset[str]())
    seen = observed(since, variant, alone_ms=1.0, held_bytes=0, period_s=period_s, cpu_share=1.0)
    assert seen is None


def test_a_quiet_period_has_no_latency() -> None:
    seen = observed(
        (Served(), frozenset()), "a", alone_ms=1.0, held_bytes=7, period_s=1.0, cpu_share=1.0
    )
    assert seen is not None
    assert (seen.latency_ms, seen.mixed, seen.held_bytes) == (None, False, 7)


def test_how_much_single_answers_differ_is_counted() -> None:
    meter = Meter(FakeClock())
    for compute_ms in (10.0, 10.0, 20.0, 40.0):
        answer(meter, latency_ms=100.0, compute_ms=compute_ms)
    seen = observed(meter.take(), "a", alone_ms=1.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    assert seen.log_variance == pytest.approx(
        statistics.variance(math.log(ms) for ms in (10.0, 10.0, 20.0, 40.0))
    )


def test_the_samples_of_a_request_are_counted_and_its_latency_is_theirs() -> None:
    meter = Meter(FakeClock())
    answer(meter, latency_ms=10.0, compute_ms=10.0)
    count(meter, answered("a", total_s=3.0, compute_s=2.56, samples=256))
    seen = observed(meter.take(), "a", alone_ms=1.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    assert (seen.answered, seen.samples) == (2.0, 257.0)
    assert seen.log_variance == pytest.approx(0.0, abs=1e-9), "each took 10 ms a sample"


def test_one_answer_has_no_spread() -> None:
    meter = Meter(FakeClock())
    answer(meter, latency_ms=0.0)
    seen = observed(meter.take(), "a", alone_ms=1.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    assert seen.log_variance is None


def test_a_request_counts_when_it_comes_and_not_when_it_is_answered() -> None:
    meter = Meter(FakeClock())
    for _ in range(3):
        meter.came()
    meter.count(answered("a", total_s=1.0, compute_s=1.0))
    since, _ = meter.take()
    assert (since.requests, since.answered) == (3.0, 1.0)


def test_answers_in_time_are_counted_by_the_deadline_of_the_moment() -> None:
    meter = Meter(FakeClock())
    answer(meter, latency_ms=1e6)
    meter.deadline_ms = 50.0
    for latency_ms in (49.0, 51.0):
        answer(meter, latency_ms=latency_ms)
    seen = observed(meter.take(), "a", alone_ms=1.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    assert (seen.answered, seen.in_time) == (3.0, 2.0)


def test_a_request_that_turns_out_to_be_wrong_after_a_look_is_no_demand_either() -> None:
    meter, seen = Meter(FakeClock()), 0.0
    for _ in range(10):
        for _ in range(20):
            meter.came()
        seen += looked(meter).requests
        for _ in range(20):
            meter.count(answered(outcome=Outcome.INVALID))
        answer(meter)
        seen += looked(meter).requests
    assert seen <= 20.0 + 10.0, "at most those of one look, and the good ones"


def looked(meter: Meter) -> Observed:
    """Return what was seen since the last look."""
    seen = observed(meter.take(), "a", alone_ms=1.0, held_bytes=0, period_s=1.0, cpu_share=1.0)
    assert seen is not None
    return seen


def sent(meter: Meter, clock: FakeClock, latencies_s: list[float]) -> None:
    """Answer requests that came at once, each after its latency."""
    began_s = clock.monotonic_s()
    for latency_s in latencies_s:
        clock.advance(began_s + latency_s - clock.monotonic_s())
        count(meter, answered(total_s=latency_s))


def test_requests_of_one_moment_came_together() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    for _ in range(5):
        clock.advance(1.0)
        sent(meter, clock, [0.5, 1.0, 1.5, 2.0])
    assert meter.take()[0].pairs == 5 * 6


def test_a_client_that_waits_for_each_answer_sends_no_batches() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    for _ in range(100):
        clock.advance(0.0021)
        count(meter, answered(total_s=0.002))
    assert meter.take()[0].pairs == 0.0


def test_pairs_are_held_against_those_by_chance_while_an_answer_takes() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    sent(meter, clock, [0.01, 0.03])
    brief = looked(meter).together
    assert brief is not None
    assert (brief.requests, brief.pairs) == (2.0, 1.0)
    assert brief.within_s == pytest.approx(0.04)
    clock.advance(1.0)
    sent(meter, clock, [1.0, 3.0])
    assert looked(meter).together == Together(requests=2.0, pairs=1.0, within_s=WINDOW_S)
    assert looked(meter).together is None


def test_times_that_nobody_asks_for_are_forgotten() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    for _ in range(2 * MAX_WINDOWS):
        clock.advance(WINDOW_S)
        count(meter, answered(total_s=0.0))
    late_s = 2 * MAX_WINDOWS * WINDOW_S
    meter.take()
    count(meter, answered(total_s=late_s))
    assert meter.take()[0].pairs == 0.0


def test_several_workers_are_as_many_queues_with_a_share_of_the_requests_each() -> None:
    one, all_of_them = Meter(FakeClock()), Meter(FakeClock())
    for _ in range(10):
        one.came()
        answer(one, "a")
    for _ in range(30):
        all_of_them.came()
        answer(all_of_them, "a")
    alone, together = (
        observed(
            meter.take(), "a", alone_ms=10.0, held_bytes=5, period_s=2.0, cpu_share=0.25,
            waiting=2 * workers, workers=workers,
        )
        for meter, workers in ((one, 1), (all_of_them, 3))
    )  # fmt: skip
    assert alone is not None
    assert together is not None
    assert (together.requests, together.waiting) == (alone.requests, alone.waiting)
    assert together.latency_ms == pytest.approx(alone.latency_ms)
    assert together.cpu_share == pytest.approx(3 * alone.cpu_share)
    assert together.own_load == pytest.approx(3 * alone.own_load)
    assert together.together is not None
    assert alone.together is not None
    assert together.together.requests == pytest.approx(alone.together.requests)


def test_requests_for_the_version_before_are_no_demand_and_no_answers() -> None:
    meter = Meter(FakeClock())
    meter.count(msgspec.structs.replace(answered("a"), is_before=True))
    served, variants = meter.take()
    assert (served.requests, served.answered, variants) == (0.0, 0.0, frozenset())
