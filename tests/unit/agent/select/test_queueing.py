"""The share in time by theory, beside queues that are simulated request by request."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.queueing import (
    drained_share,
    excess,
    most_per_s,
    share_in_time,
    wait_factor,
)

REQUESTS = 20_000
SERVICE_S = 0.1
TOLERANCE = 0.06
"""The greatest difference to the queues below is 0.055: with constant services at half a service
time beyond the service, where an exponential wait is most wrong."""


def share(
    deadline_s: float, rate_per_s: float, *, service_s: float = SERVICE_S, sigma: float = 0.0,
    factor: float | None = None, batch: float = 1.0,
) -> float:  # fmt: skip
    return share_in_time(
        deadline_s,
        (rate_per_s,),
        service_s=service_s,
        log_sigma=sigma,
        wait_factor=wait_factor(1.0, sigma**2) if factor is None else factor,
        batch=batch,
    )


def latencies_s(use: float, sigma: float, batch: float = 1.0) -> Iterator[float]:
    """Yield the latencies of a queue with one server, random arrivals and lognormal services.

    Batches have a geometric size.
    """
    chance, wait_s, ahead = random.Random(5), 0.0, 0
    log_mean = math.log(SERVICE_S) - 0.5 * sigma**2
    for _ in range(REQUESTS):
        if not ahead:
            wait_s = max(wait_s - chance.expovariate(use / SERVICE_S / batch), 0.0)
            ahead = 1
            while batch > 1.0 and chance.random() > 1.0 / batch:
                ahead += 1
        ahead -= 1
        wait_s += chance.lognormvariate(log_mean, sigma)
        yield wait_s


@pytest.mark.parametrize("use", [0.2, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_the_share_in_time_is_that_of_a_queue(use: float, sigma: float) -> None:
    took_s = sorted(latencies_s(use, sigma))
    for deadline_s in (0.11, 0.15, 0.2, 0.3, 0.5, 1.0):
        seen = sum(s <= deadline_s for s in took_s) / REQUESTS
        found = share(deadline_s, use / SERVICE_S, sigma=sigma)
        assert found == pytest.approx(seen, abs=TOLERANCE), deadline_s


@pytest.mark.parametrize("use", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("batch", [1.5, 2.6, 6.0])
def test_requests_of_a_batch_wait_for_each_other_however_little_there_is_to_do(
    use: float, batch: float
) -> None:
    took_s = sorted(latencies_s(use, 0.3, batch))
    for deadline_s in (0.15, 0.25, 0.5, 1.0, 2.0):
        seen = sum(s <= deadline_s for s in took_s) / REQUESTS
        found = share(deadline_s, use / SERVICE_S, sigma=0.3, batch=batch)
        assert found == pytest.approx(seen, abs=0.12), deadline_s
        assert found < share(deadline_s, use / SERVICE_S, sigma=0.3)
    mean_s = sum(took_s) / REQUESTS
    expected_s = (wait_factor(1.0, 0.09) * use + batch - 1.0) / (1.0 - use) * SERVICE_S
    assert mean_s - SERVICE_S == pytest.approx(expected_s, rel=0.15)


def test_the_mean_wait_is_that_of_pollaczek_and_khinchine() -> None:
    use, sigma = 0.6, 0.5
    waited_s = sum(latencies_s(use, sigma)) / REQUESTS - SERVICE_S
    expected_s = wait_factor(1.0, sigma**2) * use / (1.0 - use) * SERVICE_S
    assert waited_s == pytest.approx(expected_s, rel=0.1)


def test_waits_are_half_a_service_for_constant_services_and_none_for_regular_requests() -> None:
    assert wait_factor(1.0, 0.0) == 0.5
    assert wait_factor(0.0, 0.0) == 0.0
    assert wait_factor(4.0, math.log(2.0)) == 2.5


def test_without_waits_an_answer_is_in_time_if_its_service_is() -> None:
    assert share(0.11, 5.0, factor=0.0) == 1.0
    assert share(0.09, 5.0, factor=0.0) == 0.0
    median_s = SERVICE_S * math.exp(-0.5 * 0.4**2)
    assert share(median_s, 5.0, sigma=0.4, factor=0.0) == pytest.approx(0.5)


def test_without_a_deadline_it_counts_whether_the_rate_is_kept() -> None:
    assert share(math.inf, 9.9, sigma=1.0) == 1.0
    assert share(math.inf, 10.1) == 0.0


@pytest.mark.parametrize("deadline_s", [0.0, 1e-300])
def test_nothing_is_answered_in_no_time(deadline_s: float) -> None:
    assert share(deadline_s, 1.0, sigma=0.3) == 0.0


def test_an_unsure_rate_is_an_average_over_the_requests_of_each() -> None:
    both = share_in_time(
        0.2, (2.0, 8.0), service_s=SERVICE_S, log_sigma=0.2, wait_factor=0.5
    )  # fmt: skip
    assert both == pytest.approx(
        0.2 * share(0.2, 2.0, sigma=0.2, factor=0.5) + 0.8 * share(0.2, 8.0, sigma=0.2, factor=0.5)
    )


deadlines = st.floats(1e-3, 1e3) | st.just(math.inf)
rates = st.floats(0.0, 1e3)
services = st.floats(1e-4, 1e3)
sigmas = st.floats(0.0, 3.0)
waits = st.floats(0.0, 20.0)
batches = st.just(1.0) | st.floats(1.0, 50.0)
more = st.floats(1.0, 10.0)


@given(deadlines, rates, services, sigmas, waits, batches, more)
def test_more_time_less_demand_and_a_faster_variant_are_never_later(
    deadline_s: float,
    rate: float,
    service_s: float,
    sigma: float,
    factor: float,
    batch: float,
    times: float,
) -> None:
    def of(deadline: float, per_s: float, service: float) -> float:
        return share(deadline, per_s, service_s=service, sigma=sigma, factor=factor, batch=batch)

    found = of(deadline_s, rate, service_s)
    assert 0.0 <= found <= 1.0
    for worse in (
        of(deadline_s / times, rate, service_s),
        of(deadline_s, rate * times, service_s),
        of(deadline_s, rate, service_s * times),
    ):
        assert worse <= found + 1e-8


@given(st.floats(0.01, 10.0), services, waits, batches)
def test_the_most_that_can_be_answered_in_time_has_a_mean_answer_of_that_time(
    deadline_s: float, service_s: float, factor: float, batch: float
) -> None:
    most = most_per_s(deadline_s, service_s=service_s, wait_factor=factor, batch=batch)
    if batch * service_s >= deadline_s:
        assert most == pytest.approx(0.0, abs=1e-9)
        return
    use = most * service_s
    assert 0.0 < use <= 1.0
    if use < 1.0:
        mean_s = service_s * (1.0 + (factor * use + batch - 1.0) / (1.0 - use))
        assert mean_s == pytest.approx(deadline_s, rel=1e-3) or factor < 1e-3


def test_without_a_deadline_the_most_is_what_one_server_can_answer() -> None:
    assert most_per_s(math.inf, service_s=0.1, wait_factor=3.0) == 10.0


def drained_s(waiting: int, rate_per_s: float, bearable_s: float) -> float:
    """Return when a new request is in time again, by answers one after another."""
    left, at_s = float(waiting), 0.0
    while left * SERVICE_S > bearable_s:
        left += (rate_per_s * SERVICE_S - 1.0) * 0.01
        at_s += 0.01 * SERVICE_S
    return at_s


@pytest.mark.parametrize(("waiting", "rate"), [(3, 0.0), (20, 5.0), (40, 8.0), (64, 2.0)])
def test_those_that_wait_make_new_ones_late_until_they_are_answered(
    waiting: int, rate: float
) -> None:
    late_s = drained_s(waiting, rate, 0.2)
    found = drained_share(waiting, rate, SERVICE_S, 0.2 + SERVICE_S, 20.0)
    assert found == pytest.approx(max(1.0 - late_s / 20.0, 0.0), abs=0.002)


def test_a_queue_that_only_grows_is_never_drained() -> None:
    assert drained_share(5.0, 10.0, SERVICE_S, 0.31, 10.0) == 0.0
    assert drained_share(2.0, 10.0, SERVICE_S, 0.31, 10.0) == 1.0, "they are no longer than allowed"
    assert drained_share(1e9, 10.0, SERVICE_S, math.inf, 10.0) == 1.0, "nothing is late"


@given(st.floats(0.0, 100.0), rates, services, st.floats(0.0, 10.0), more)
def test_a_faster_variant_drains_no_later(
    waiting: float, rate: float, service_s: float, left_s: float, times: float
) -> None:
    quick = drained_share(waiting, rate, service_s, left_s, 10.0)
    slow = drained_share(waiting, rate, service_s * times, left_s, 10.0)
    assert 0.0 <= slow <= quick <= 1.0


def test_what_is_beyond_the_capacity_is_not_answered() -> None:
    assert (excess(0.0), excess(0.5), excess(1.0)) == (0.0, 0.0, 0.0)
    assert excess(2.0) == 0.5
    assert excess(10.0) == pytest.approx(0.9)
