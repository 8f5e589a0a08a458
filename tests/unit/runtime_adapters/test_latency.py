"""How long an inference takes, by a clock that the session itself moves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.latency import MAX_RUNS, MEASURE_S, measure_latency_ms
from runtime_adapters.protocol import SessionDescription, Tensors
from tests.simulators.clock import FakeClock
from wire.package.tensors import TensorSpec

INPUTS = (
    TensorSpec(name="x", datatype="FP64", shape=(-1, 2)),
    TensorSpec(name="y", datatype="INT64", shape=(-1,)),
)
SAMPLES: Tensors = {"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}


class TimedSession:
    """A session whose runs take what a test says."""

    def __init__(self, clock: FakeClock, takes_s: Iterator[float]) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self.asked: list[Tensors] = []

    def infer(self, inputs: Tensors) -> Tensors:
        self.asked.append(inputs)
        self._clock.advance(next(self._takes_s))
        return {}

    def describe(self) -> SessionDescription:
        return SessionDescription(runtime="t", version="1", devices=(), inputs=INPUTS, outputs=())

    def close(self) -> None:
        return


def measured(takes_s: Iterator[float]) -> tuple[float, TimedSession]:
    clock = FakeClock()
    session = TimedSession(clock, takes_s)
    return measure_latency_ms(session, SAMPLES, clock), session


def repeated(*takes_s: float) -> Iterator[float]:
    while True:
        yield from takes_s


def test_a_neighbour_in_half_of_the_runs_changes_nothing() -> None:
    latency_ms, _ = measured(repeated(0.010, 0.025))
    assert latency_ms == pytest.approx(10.0)


def test_slow_first_runs_change_nothing() -> None:
    def warming() -> Iterator[float]:
        yield from (0.08, 0.04, 0.02)
        yield from repeated(0.010)

    latency_ms, _ = measured(warming())
    assert latency_ms == pytest.approx(10.0)


def test_samples_are_run_one_by_one_in_turn() -> None:
    _, session = measured(repeated(0.05))
    assert len(session.asked) == round(MEASURE_S / 0.05)
    for number, asked in enumerate(session.asked):
        place = number % 3
        np.testing.assert_array_equal(asked["x"], SAMPLES["x"][place : place + 1])
        np.testing.assert_array_equal(asked["y"], [place])


@pytest.mark.parametrize(("takes_s", "runs"), [(5.0, 1), (1e-6, MAX_RUNS)])
def test_the_runs_are_bounded(takes_s: float, runs: int) -> None:
    latency_ms, session = measured(repeated(takes_s))
    assert len(session.asked) == runs
    assert latency_ms == pytest.approx(takes_s * 1000.0)


@pytest.mark.parametrize("inputs", [{}, {"x": np.zeros((0, 2))}])
def test_without_a_sample_nothing_can_be_measured(inputs: Tensors) -> None:
    clock = FakeClock()
    with pytest.raises(InputError, match="no sample"):
        measure_latency_ms(TimedSession(clock, repeated(1.0)), inputs, clock)


def test_a_variant_that_fails_is_not_measured() -> None:
    class Failing(TimedSession):
        def infer(self, _inputs: Tensors) -> Tensors:
            raise InferenceError("no")

    clock = FakeClock()
    with pytest.raises(InferenceError):
        measure_latency_ms(Failing(clock, repeated(1.0)), SAMPLES, clock)
