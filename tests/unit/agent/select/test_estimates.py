"""What is learnt of a device from a period: by hand, and what a lost reading does to it."""

from __future__ import annotations

import math

import msgspec
import pytest

from agent.select.batches import Together
from agent.select.estimates import FASTEST, GIB, SLOWEST, Estimates, Observed, joined
from agent.select.rates import Rate
from agent.select.records import Record
from agent.select.slowdowns import Slowdowns
from wire.health import HealthSnapshot

MIB = 1024 * 1024
SEEN = Observed(
    variant="v", alone_ms=50.0, held_bytes=100 * MIB, requests=8.0, answered=8.0, samples=8.0,
    compute_s=0.8, latency_ms=120.0, own_load=0.4, cpu_share=0.5,
)  # fmt: skip


def read(**readings: float | None) -> HealthSnapshot:
    return HealthSnapshot(at_s=0.0, **readings)  # type: ignore[arg-type]  # mixed types


def changed(**fields: object) -> Observed:
    return msgspec.structs.replace(SEEN, **fields)


def test_one_period_by_hand() -> None:
    health = read(cpu_busy_ratio=0.7, memory_available_bytes=500 * MIB, headroom=0.3)
    known = Estimates().update(health, SEEN, 2.0)
    assert known.period_s == 2.0
    assert known.demand == Rate().update(8.0, 2.0)
    assert known.demand_lately.points()[0] == pytest.approx(known.demand_per_s, rel=0.03)
    assert known.cpu_share == 0.5
    # 0.8 s for 8 answers are 100 ms where 50 were declared.
    assert known.slowdown == Slowdowns().update("v", math.log(2.0), 2.0)
    assert known.slowdown_lately.seen_s == 2.0
    assert known.other_load == pytest.approx(0.3)
    assert known.free_bytes == 600 * MIB
    assert known.taken_peak.value == -600.0 * MIB
    # Use is 4 / s times 0.1 s; over 66.7 ms for use / (1 - use) service times lie 20 ms of waiting.
    busy_ms = 100.0 * 0.4 / 0.6
    rest_ms = 0.5 * busy_ms * math.sqrt(0.1 / 2.0) / 0.6
    line = Estimates().waits.drifted(0.02, 0.001)
    line = line.update(busy_ms, 20.0, gain=1.0, noise=0.25 + rest_ms**2)
    assert known.waits.slope == pytest.approx(line.slope)
    assert known.waits.base == pytest.approx(line.base)
    assert 0.3 < known.waits.slope < 0.4
    assert known.heat.now is not None
    assert known.heat.now.mean == 0.3


def test_what_did_not_serve_counts_no_requests() -> None:
    known = Estimates().update(read(), changed(requests=10.0), 1.0)
    assert known.update(read(), None, 1.0).demand == known.demand


def test_a_request_of_many_samples_is_no_slow_device() -> None:
    single = changed(requests=1.0, answered=1.0, samples=1.0, compute_s=0.05, latency_ms=51.0)
    batch = changed(requests=1.0, answered=1.0, samples=256.0, compute_s=12.8, latency_ms=12801.0)
    before = Estimates().update(read(), single, 1.0)
    after = before.update(read(), batch, 1.0)
    assert after.slowdown.expected("v").factor == pytest.approx(1.0, abs=0.01)
    assert after.slowdown_lately.points()[-1] < 1.1, "no time of it was slow"
    assert after.request_samples == 256.0, "but such a request takes as long as 256"


def test_the_size_of_requests_rises_at_once_and_falls_by_halves() -> None:
    known = Estimates().update(read(), changed(samples=80.0), 1.0)
    assert known.request_samples == 10.0
    known = known.update(read(), SEEN, 1.0)
    assert known.request_samples == 5.5
    quiet = changed(requests=0.0, answered=0.0, samples=0.0, compute_s=0.0, latency_ms=None)
    assert known.update(read(), quiet, 1.0).request_samples == 5.5, "no request, no size"


def test_what_is_mixed_tells_of_the_demand_alone() -> None:
    before = Estimates().update(read(cpu_busy_ratio=0.5), SEEN, 1.0)
    after = before.update(read(cpu_busy_ratio=1.0), changed(mixed=True, requests=20.0), 1.0)
    assert after.demand == before.demand.update(20.0, 1.0)
    assert after.slowdown == before.slowdown
    assert after.slowdown_lately == before.slowdown_lately
    assert after.other_load == before.other_load, "what loads is not others"


@pytest.mark.parametrize(
    "fields",
    [
        {"alone_ms": None}, {"alone_ms": 0.0}, {"answered": 0.0, "latency_ms": None},
        {"compute_s": 0.0},
    ],
)  # fmt: skip
def test_without_figures_no_slowdown_is_learnt(fields: dict[str, float | None]) -> None:
    known = Estimates().update(read(), changed(**fields), 1.0)
    assert known.slowdown == Slowdowns()
    assert known.demand == Rate().update(8.0, 1.0)


@pytest.mark.parametrize(("compute_s", "taken_as"), [(1e-9, FASTEST), (1e9, SLOWEST)])
def test_an_absurd_latency_is_bounded(compute_s: float, taken_as: float) -> None:
    known = Estimates().update(read(), changed(compute_s=compute_s), 1.0)
    assert known.slowdown == Slowdowns().update("v", math.log(taken_as), 1.0)


def test_a_share_of_an_answer_so_small_that_it_is_none_breaks_nothing() -> None:
    tiny = changed(requests=1e-313, answered=1e-238, samples=1e-238, compute_s=1.0, latency_ms=0.0)
    known = Estimates().update(read(), tiny, 1e-6)
    assert known.slowdown == Slowdowns().update("v", math.log(SLOWEST), 1e-6)
    assert math.isfinite(known.waits.at(1.0))


def test_the_way_to_the_worker_is_no_wait() -> None:
    # A tenth of the time in use, 1 ms on the way: as a wait it would be 1.8 times that of chance.
    light = changed(
        alone_ms=5.0, requests=20.0, answered=20.0, samples=20.0, compute_s=0.1, latency_ms=6.0
    )
    known = Estimates()
    for _ in range(60):
        known = known.update(read(), light, 1.0)
    assert known.waits.slope <= 0.55
    assert 0.6 < known.waits.base < 1.0


def test_regular_arrivals_are_soon_seen_at_half_use_and_not_forgotten_at_less() -> None:
    half = changed(
        alone_ms=20.0, requests=25.0, answered=25.0, samples=25.0, compute_s=0.5, latency_ms=21.0
    )
    light = changed(
        alone_ms=4.0, requests=25.0, answered=25.0, samples=25.0, compute_s=0.1, latency_ms=5.0
    )
    known = Estimates().update(read(), half, 1.0)
    assert known.waits.slope < 0.1
    for _ in range(100):
        known = known.update(read(), light, 1.0)
    assert known.waits.slope < 0.15


def test_waits_are_seen_for_what_they_are() -> None:
    # Use is a half, so that an M/D/1 queue waits for half a service time.
    random = changed(
        alone_ms=20.0, requests=25.0, answered=25.0, samples=25.0, compute_s=0.5, latency_ms=31.0
    )
    known = Estimates()
    for _ in range(60):
        known = known.update(read(), random, 1.0)
    assert known.waits.slope == pytest.approx(0.5, abs=0.06)
    assert known.waits.at(20.0) == pytest.approx(11.0, abs=0.5)


def test_one_request_that_hung_is_no_wait() -> None:
    light = changed(
        alone_ms=5.0, requests=20.0, answered=20.0, samples=20.0, compute_s=0.1, latency_ms=6.0
    )
    known = Estimates()
    for _ in range(20):
        known = known.update(read(), light, 1.0)
    hung = known.update(read(), msgspec.structs.replace(light, latency_ms=1500.0), 1.0)
    assert hung.waits.base < known.waits.base + 2.0
    full = known.update(read(), changed(requests=1000.0), 1.0)
    assert full.waits.slope == known.waits.slope, "a queue that only grows tells of no rate"


def test_a_period_of_no_length_teaches_nothing_of_serving() -> None:
    known = Estimates().update(read(cpu_busy_ratio=0.6), SEEN, 0.0)
    assert (known.demand_per_s, known.slowdown) == (0.0, Slowdowns())


def test_others_that_are_not_seen_any_more_are_not_idle() -> None:
    known = Estimates().update(read(cpu_busy_ratio=0.9), SEEN, 1.0)
    lost = known.update(read(), SEEN, 1.0)
    assert lost.other_load == pytest.approx(0.5)
    assert Estimates().update(read(), SEEN, 1.0).other_load == 0.0, "never seen, never judged"


def test_a_load_average_stands_in_for_what_is_not_told() -> None:
    assert Estimates().update(read(load_ratio=0.6), SEEN, 1.0).other_load == pytest.approx(0.2)
    assert Estimates().update(read(load_ratio=9.0), SEEN, 1.0).other_load == pytest.approx(0.6)


def test_the_scarcest_moment_is_remembered() -> None:
    known = Estimates()
    for available in (900, 200, 900):
        known = known.update(read(memory_available_bytes=available * MIB), None, 1.0)
    assert known.free_bytes == 900 * MIB
    assert known.taken_peak.value is not None
    assert -210 * MIB < known.taken_peak.value < -200 * MIB
    assert known.update(read(), None, 1.0).free_bytes is None


def test_where_nothing_is_left_nobody_knows_how_much_is_lacking() -> None:
    known = Estimates().update(read(memory_available_bytes=900 * MIB), None, 1.0)
    none = known.update(read(memory_available_bytes=0), SEEN, 1.0)
    assert none.free_bytes == 0
    assert (none.taken_peak, none.memory_lately) == (known.taken_peak, known.memory_lately)


def test_it_is_remembered_how_often_memory_got_scarce() -> None:
    known = Estimates()
    for available in (900, 200, 900, 200, 900):
        known = known.update(read(memory_available_bytes=available * MIB), None, 10.0)
    per_s = known.memory_lately.rises_per_s(GIB / (400 * MIB))
    assert per_s == pytest.approx(2.0 / 50.0, rel=0.03)
    assert known.memory_lately.rises_per_s(GIB / (100 * MIB)) == 0.0


def test_requests_that_wait_are_those_at_the_end() -> None:
    known = Estimates().update(read(), changed(waiting=7.0), 1.0)
    assert known.waiting == 7.0
    assert known.update(read(), SEEN, 1.0).waiting == 0.0


def test_a_lower_clock_slows_what_comes_next_at_once() -> None:
    def at(limit: float | None) -> HealthSnapshot:
        return read(cpu_frequency_limit_ratio=limit)

    known = Estimates().update(at(1.0), SEEN, 1.0)
    before = known.slowdown.expected("v").factor
    slowed = known.update(at(0.5), None, 1.0)
    assert slowed.slowdown.expected("v").factor == pytest.approx(2.0 * before)
    blind = slowed.update(at(None), None, 1.0)
    back = blind.update(at(1.0), None, 1.0)
    assert back.slowdown.expected("v").factor == pytest.approx(before)


def test_where_the_processor_was_throttled_is_remembered_for_some_hours() -> None:
    def at(headroom: float, limit: float = 1.0) -> HealthSnapshot:
        return read(headroom=headroom, cpu_frequency_limit_ratio=limit)

    known = Estimates().update(at(0.9), None, 1.0)
    assert known.throttling.at is None
    known = known.update(at(0.8, 0.6), None, 1.0).update(at(0.85, 0.6), None, 1.0)
    assert known.throttling.at == pytest.approx(0.8, abs=1e-3)
    later = known.update(at(0.2), None, 3600.0)
    assert later.throttling.at == pytest.approx(0.9, abs=1e-3), "a tenth in the hour"
    assert later.update(at(0.2), None, 3 * 3600.0).throttling.at is None
    severe = Estimates().update(at(1.2, 0.6), None, 1.0)
    assert severe.throttling.at is None, "there every board is throttled"


@pytest.mark.parametrize(
    ("requests", "log_variance", "least", "most"),
    [((6.0,) * 2, 0.0, 0.0, 0.1), ((0.0, 12.0), 0.0, 0.4, 0.5), ((6.0,) * 2, 1.0, 0.8, 0.95)],
    ids=["regular", "random-at-least", "services-that-differ"],
)
def test_how_long_requests_wait_follows_from_how_they_come_and_differ(
    requests: tuple[float, ...], log_variance: float, least: float, most: float
) -> None:
    # No waits are seen, but in theory they are half the sum of both dispersions.
    known = Estimates()
    for second in range(600):
        came = requests[second % len(requests)]
        known = known.update(
            read(),
            changed(requests=came, log_variance=log_variance, latency_ms=None),
            1.0,
        )
    assert least <= known.wait_factor <= most


def test_waits_that_were_seen_correct_theory() -> None:
    # They wait for a whole service time at a use of a half, though they seem to come regularly.
    waiting = changed(
        alone_ms=20.0, requests=25.0, answered=25.0, samples=25.0, compute_s=0.5, latency_ms=41.0
    )
    known = Estimates()
    for _ in range(120):
        known = known.update(read(), waiting, 1.0)
    theory = 0.5 * known.demand.dispersion
    assert theory < 0.1
    assert theory + 0.25 < known.wait_factor < known.waits.slope


def test_periods_are_joined() -> None:
    assert joined([]) is None
    assert joined([None, None]) is None
    assert joined([SEEN]) == SEEN
    other = changed(
        requests=4.0, answered=2.0, in_time=1.0, compute_s=0.1, latency_ms=20.0, held_bytes=7
    )
    whole = joined([changed(in_time=7.0), None, other])
    assert whole is not None
    assert whole.in_time == 8.0
    assert (whole.requests, whole.answered, whole.held_bytes) == (12.0, 10.0, 7)
    assert whole.compute_s == pytest.approx(0.9)
    assert whole.latency_ms == pytest.approx((8 * 120.0 + 2 * 20.0) / 10)
    assert whole.own_load == pytest.approx(0.8 / 3)
    assert whole.mixed
    silent = changed(answered=0.0, latency_ms=None)
    nothing = joined([silent, silent])
    assert nothing is not None
    assert nothing.latency_ms is None


def test_how_much_answers_differ_is_learnt_where_it_is_known() -> None:
    known = Estimates().update(read(), changed(log_variance=0.2), 1.0)
    assert known.scatter.variance == pytest.approx(0.2)
    assert known.update(read(), SEEN, 1.0).scatter.variance == pytest.approx(0.2)
    mixed = known.update(read(), changed(log_variance=2.0, mixed=True), 1.0)
    assert mixed.scatter == known.scatter


def test_other_variants_are_as_fast_as_was_measured_and_the_board_is_the_same() -> None:
    known = Estimates().update(read(headroom=0.3), changed(log_variance=0.2), 1.0)
    known = msgspec.structs.replace(known, record=Record().update(0.9, 1.0, 5.0, 1.0))
    other = known.of_other_variants()
    assert other.record == Record()
    assert other.slowdown == Slowdowns()
    assert (other.slowdown_lately.seen_s, other.scatter.variance) == (0.0, 0.0)
    assert (other.demand, other.heat, other.waits) == (known.demand, known.heat, known.waits)


def test_what_the_others_of_a_batch_cost_is_no_wait_of_the_queue() -> None:
    # Four come at once each second and take 50 ms each: 75 ms of waiting, all of it for each other.
    batches = changed(
        alone_ms=50.0, requests=4.0, answered=4.0, samples=4.0, compute_s=0.2, latency_ms=125.0,
        together=Together(requests=4.0, pairs=6.0),
    )  # fmt: skip
    known = Estimates()
    for _ in range(600):
        known = known.update(read(), batches, 1.0)
    assert known.demand.batches.mean == pytest.approx(2.5, abs=0.1)
    assert known.wait_factor < 0.5
    alone = Estimates()
    for _ in range(600):
        alone = alone.update(read(), msgspec.structs.replace(batches, together=None), 1.0)
    assert alone.waits.slope > 3.0
