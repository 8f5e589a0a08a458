"""How slow a model is beside another one, on a machine that is busy now and then."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.alternation import (
    FIRST_LOOK_PAIRS,
    MOST_PAIRS,
    alternate,
    is_narrow,
    range_of_median,
)
from tests.simulators.clock import FakeClock
from wire.package.performance import Relative


class Machine:
    """Two models, of which the first takes `ratio` times as long, on a machine that is slowed down.

    Args:
        ratio: How many times as long.
        slowdown: How many times as long everything takes, by the time in seconds.
        noise: Standard deviation of the logarithm of a single time.
    """

    def __init__(
        self,
        ratio: float,
        *,
        slowdown: Callable[[float], float] = lambda _: 1.0,
        noise: float = 0.0,
    ) -> None:
        self.clock, self._random = FakeClock(), Random(1)
        self._ratio, self._slowdown, self._noise = ratio, slowdown, noise

    def _run(self, taken_s: float) -> None:
        scatter = self._random.lognormvariate(0.0, self._noise)
        self.clock.advance(taken_s * self._slowdown(self.clock.monotonic_s()) * scatter)

    def beside(self, most_s: float = 3.0) -> Relative | None:
        return alternate(
            lambda: self._run(0.001 * self._ratio),
            lambda: self._run(0.001),
            reference="onnxruntime",
            most_s=most_s,
            clock=self.clock,
        )


def test_on_a_quiet_machine_the_first_look_is_enough() -> None:
    found = Machine(2.5).beside()
    assert found == Relative(
        reference="onnxruntime", ratio=2.5, low=2.5, high=2.5, pairs=FIRST_LOOK_PAIRS
    )


def test_work_that_comes_and_goes_does_not_change_the_ratio() -> None:
    machine = Machine(2.0, slowdown=lambda at_s: 3.0 if at_s % 0.5 < 0.2 else 1.0)
    found = machine.beside()
    assert found is not None
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert is_narrow((found.low, found.high))


def test_a_ratio_that_stays_unsure_says_so_and_ends() -> None:
    machine = Machine(4.0, noise=2.0)
    found = machine.beside(most_s=1.0)
    assert found is not None
    assert not is_narrow((found.low, found.high))
    assert machine.clock.monotonic_s() < 10.0


def test_a_model_that_is_too_slow_for_six_pairs_has_no_range() -> None:
    assert Machine(5000.0).beside(most_s=15.0) is None


def test_a_fast_machine_ends_too() -> None:
    found = Machine(1.0, noise=3.0).beside(most_s=1e6)
    assert found is not None
    assert found.pairs == MOST_PAIRS


@pytest.mark.parametrize(("count", "ends"), [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8))])
def test_the_ends_are_those_of_the_binomial_table(count: int, ends: tuple[int, int] | None) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert range_of_median(values) == ends


def test_the_range_holds_the_median_as_often_as_it_says() -> None:
    draw = Random(7)
    held = 0
    for _ in range(2000):
        low, high = range_of_median([draw.expovariate(1.0) for _ in range(16)]) or (0.0, 0.0)
        held += low <= 0.6931 <= high
    assert held / 2000 >= 0.95 - 0.01


@given(st.lists(st.floats(0.01, 100.0), max_size=60))
def test_a_range_holds_the_median_of_its_own_values(values: list[float]) -> None:
    found = range_of_median(values)
    assert (found is None) == (len(values) < 6)
    if found is not None:
        assert found[0] <= statistics.median(values) <= found[1]
        assert all(
            range_of_median(list(order)) == found
            for order in itertools.islice(itertools.permutations(values), 3)
        )
