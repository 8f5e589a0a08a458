"""What a worker counts of requests and answers, and that it takes next to no time."""

from __future__ import annotations

import numpy as np
import pytest

from agent.serve.frames import Seen
from agent.serve.worker import observing
from agent.serve.worker.observing import MOST_BINS, MOST_ROWS, Observer
from runtime_adapters.protocol import Tensors
from tests.simulators.clock import FakeClock
from wire.package.distribution import Distribution
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

BY_CLASS = Distribution(
    of="output", tensor="scores", measure="class", classes=(0, 1), counts=(5, 5, 0)
)
BY_MEAN = Distribution(of="input", tensor="x", measure="mean", edges=(0.5,), counts=(5, 5))


def info(*distributions: Distribution) -> VariantInfo:
    return VariantInfo(
        runtime="null",
        precision="fp32",
        model_file="model.json",
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
        outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, 3)),),
        size_bytes=1,
        distributions=distributions,
    )


def request(*answers: int) -> tuple[Tensors, Tensors]:
    x = np.tile(np.array(answers, np.float32)[:, None], 4)
    return {"x": x}, {"scores": np.eye(3, dtype=np.float32)[list(answers)]}


def test_samples_are_counted_by_bin_until_they_are_taken() -> None:
    clock = FakeClock()
    observer = Observer(info(BY_CLASS, BY_MEAN), clock)
    observer.look(*request(0))
    clock.advance(1.0)
    observer.look(*request(2, 2))
    assert set(observer.take()) == {
        Seen(tensor="output.scores", measure="class", bin=0, samples=1),
        Seen(tensor="output.scores", measure="class", bin=2, samples=2),
        Seen(tensor="input.x", measure="mean", bin=0, samples=1),
        Seen(tensor="input.x", measure="mean", bin=1, samples=2),
    }
    assert observer.take() == ()


def test_a_look_is_followed_by_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most five requests a second; a slow look, here of 20 ms, is one in four seconds."""
    clock = FakeClock()
    observer = Observer(info(BY_CLASS), clock)
    for _ in range(1000):
        observer.look(*request(0))
        clock.advance(0.001)
    assert sum(seen.samples for seen in observer.take()) == 5

    def slow(*given: object) -> object:
        clock.advance(0.020)
        return np.array([0])

    monkeypatch.setattr(observing, "bins", slow)
    for _ in range(10_000):
        observer.look(*request(0))
        clock.advance(0.001)
    assert 2 <= sum(seen.samples for seen in observer.take()) <= 4


def test_of_a_large_request_the_first_samples_are_counted() -> None:
    observer = Observer(info(BY_CLASS), FakeClock())
    observer.look(*request(*[1] * 100))
    assert [seen.samples for seen in observer.take()] == [MOST_ROWS]


@pytest.mark.parametrize(
    "distributions",
    [
        (),
        (Distribution(of="input", tensor="gone", measure="mean", edges=(0.5,), counts=(1, 1)),),
        (Distribution(of="input", tensor="x", measure="kurtosis", edges=(0.5,), counts=(1, 1)),),
    ],
    ids=["an older package", "another tensor", "a later measure"],
)
def test_what_is_not_known_is_not_counted(distributions: tuple[Distribution, ...]) -> None:
    observer = Observer(info(*distributions), FakeClock())
    observer.look(*request(0))
    assert observer.take() == ()


def test_tensors_that_are_not_as_declared_are_counted_no_more() -> None:
    clock = FakeClock()
    observer = Observer(info(BY_MEAN), clock)
    observer.look({}, {})
    clock.advance(10.0)
    observer.look(*request(0))
    assert observer.take() == ()


def test_the_number_of_series_is_bounded() -> None:
    edges = tuple(float(edge) for edge in range(29))
    many = [
        Distribution(of="input", tensor="x", measure=measure, edges=edges, counts=(1,) * 30)
        for measure in ("mean", "spread", "mean")
    ]
    clock = FakeClock()
    observer = Observer(info(*many), clock)
    observer.look(*request(0))
    assert len(observer.take()) == 2 <= MOST_BINS // 30
