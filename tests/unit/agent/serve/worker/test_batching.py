"""Requests that are run together get what each would have got alone, or they are not joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.serve.worker.batching import GROUPS_BETWEEN_TRIALS, Done, Joiner
from runtime_adapters.errors import InferenceError
from runtime_adapters.protocol import SessionDescription, Tensor, Tensors
from tests.simulators.clock import FakeClock
from wire.package.tensors import TensorSpec

ONE: tuple[TensorSpec, ...] = (TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),)
OUT: tuple[TensorSpec, ...] = (TensorSpec(name="y", datatype="FP32", shape=(-1, -1)),)
Model = Callable[[Tensors], Tensors]


class ModelSession:
    """Runs a function, and takes the time that a test says."""

    def __init__(self, model: Model, *, base_ms: float = 10.0, row_ms: float = 1.0) -> None:
        self.clock = FakeClock()
        self.runs: list[int] = []
        self._model = model
        self._base_ms, self._row_ms = base_ms, row_ms

    def infer(self, inputs: Tensors) -> Tensors:
        rows = len(inputs["x"])
        self.runs.append(rows)
        self.clock.advance((self._base_ms + self._row_ms * rows) / 1000)
        return self._model(inputs)

    def describe(self) -> SessionDescription:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def joiner(self) -> Joiner:
        return Joiner(self, ONE, OUT, self.clock)


def doubled(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] * 2}


def array(*rows: list[float]) -> Tensor:
    return np.array(rows, np.float32)


def run(
    joiner: Joiner, arrays: list[Tensor], *, most: int = 8, stream: bool = False
) -> tuple[list[Any], list[int]]:
    """Return the answers in the order of the requests, and with how many each was joined."""
    requests: list[tuple[int, Tensors]] = [(n, {"x": a}) for n, a in enumerate(arrays)]
    done: dict[int, Done] = {}
    for part in joiner.run(requests, most_rows=most, stream=stream):
        for one in part:
            assert one.place not in done
            done[one.place] = one
    assert sorted(done) == list(range(len(arrays)))
    assert [done[place].samples for place in sorted(done)] == [len(a) for a in arrays]
    ordered = [done[place] for place in range(len(arrays))]
    return (
        [d.result if isinstance(d.result, Exception) else d.result["y"] for d in ordered],
        [d.joined for d in ordered],
    )


shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=9)


@settings(max_examples=200)
@given(st.lists(shapes, min_size=1, max_size=5), st.integers(1, 9), st.booleans())
def test_each_gets_exactly_its_own_rows(
    rounds: list[list[tuple[int, int]]], most: int, stream: bool
) -> None:
    session = ModelSession(doubled)
    joiner = session.joiner()
    random = np.random.default_rng(7)
    for sizes in rounds:
        arrays = [random.random(shape).astype(np.float32) for shape in sizes]
        before = len(session.runs)
        answers, _ = run(joiner, arrays, most=most, stream=stream)
        for given_array, answer in zip(arrays, answers, strict=True):
            assert isinstance(answer, np.ndarray)
            assert answer.dtype == np.float32
            assert np.array_equal(answer, given_array * 2)
        largest = max(rows for rows, _ in sizes)
        assert max(session.runs[before:]) <= (1 if stream else max(most, largest))


def test_requests_are_joined_once_that_has_been_tried() -> None:
    session = ModelSession(doubled)
    joiner = session.joiner()
    arrays = [array([1, 2]), array([3, 4]), array([5, 6])]
    assert run(joiner, arrays)[1] == [1, 1, 1]
    assert session.runs == [1, 1, 1, 3]
    assert run(joiner, arrays)[1] == [3, 3, 3]
    assert session.runs == [1, 1, 1, 3, 3]


def test_a_joined_run_is_shared_among_its_requests() -> None:
    joiner = ModelSession(doubled, base_ms=9, row_ms=1).joiner()
    requests: list[tuple[int, Tensors]] = [
        (0, {"x": array([1, 2], [3, 4])}),
        (1, {"x": array([5, 6])}),
    ]
    list(joiner.run(requests, most_rows=8, stream=False))
    ((first, second),) = joiner.run(requests, most_rows=8, stream=False)
    assert first.compute_s == pytest.approx(0.008)
    assert second.compute_s == pytest.approx(0.004)


def test_what_is_not_faster_together_is_run_apart() -> None:
    session = ModelSession(doubled, base_ms=0.1, row_ms=10)
    joiner = session.joiner()
    arrays = [array([1, 2]), array([3, 4])]
    for _ in range(GROUPS_BETWEEN_TRIALS + 1):
        assert run(joiner, arrays)[1] == [1, 1]
    assert session.runs.count(2) == 2  # the trials


def test_equal_requests_prove_nothing() -> None:
    session = ModelSession(lambda inputs: {"y": inputs["x"] - inputs["x"].mean(axis=0)})
    joiner = session.joiner()
    for _ in range(3):
        assert run(joiner, [array([1, 2]), array([1, 2])])[1] == [1, 1]
    assert set(session.runs) == {1}


def quantized(inputs: Tensors) -> Tensors:
    """Round to 255 steps of the greatest value in the whole batch."""
    step = np.abs(inputs["x"]).max() / np.float32(255)
    return {"y": np.round(inputs["x"] / step) * step}


@pytest.mark.parametrize(
    "model",
    [
        quantized,
        lambda inputs: {"y": inputs["x"] / np.sum(inputs["x"], axis=0, keepdims=True)},
        lambda inputs: {"y": inputs["x"][::-1]},
        lambda inputs: {"y": inputs["x"].sum(axis=0, keepdims=True)},
        lambda inputs: {
            "y": (inputs["x"] * 2).astype(np.float64 if len(inputs["x"]) > 1 else "f4")
        },
    ],
)
def test_a_model_whose_answers_depend_on_others_is_never_joined(model: Model) -> None:
    session = ModelSession(model)
    joiner = session.joiner()
    random = np.random.default_rng(3)
    for _ in range(3 * GROUPS_BETWEEN_TRIALS):
        arrays = [random.random((1, 5)).astype(np.float32) + 0.1 for _ in range(2)]
        answers, joined = run(joiner, arrays)
        assert joined == [1, 1]
        for given_array, answer in zip(arrays, answers, strict=True):
            assert np.array_equal(answer, model({"x": given_array})["y"])


def test_where_a_joined_run_fails_each_is_run_alone() -> None:
    def fragile(inputs: Tensors) -> Tensors:
        if np.isnan(inputs["x"]).any():
            raise InferenceError("it is not a number")
        return doubled(inputs)

    joiner = ModelSession(fragile).joiner()
    run(joiner, [array([1, 2]), array([3, 4])])
    assert run(joiner, [array([1, 2]), array([3, 4])])[1] == [2, 2]
    answers, joined = run(joiner, [array([1, 2]), array([np.nan, 4]), array([5, 6])])
    assert joined == [1, 1, 1]
    assert isinstance(answers[1], InferenceError)
    assert np.array_equal(answers[0], array([2, 4]))
    assert np.array_equal(answers[2], array([10, 12]))
    assert not joiner.take_fault(), "its own client hears of it"


def test_where_there_is_no_memory_for_all_each_is_run_alone() -> None:
    def small(inputs: Tensors) -> Tensors:
        if len(inputs["x"]) > 1:
            raise MemoryError
        return doubled(inputs)

    joiner = ModelSession(small).joiner()
    for _ in range(3):
        answers, joined = run(joiner, [array([1, 2]), array([3, 4])])
        assert joined == [1, 1]
        assert np.array_equal(answers[0], array([2, 4]))
    assert joiner.take_fault() == "MemoryError", "else nobody would hear of it"
    assert not joiner.take_fault(), "once is enough"


def test_a_model_that_does_not_answer_each_sample_is_never_joined_and_says_so() -> None:
    joiner = ModelSession(lambda inputs: {"y": doubled(inputs)["y"][:1]}).joiner()
    answers, joined = run(joiner, [array([1, 2]), array([3, 4])])
    assert joined == [1, 1]
    assert np.array_equal(answers[1], array([6, 8]))
    assert joiner.take_fault() == "output 'y' of 2 samples has shape (1, 2)"


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((TensorSpec(name="x", datatype="FP32", shape=(1, 2)),), OUT),
        (ONE, (TensorSpec(name="y", datatype="FP32", shape=(1, 2)),)),
        ((*ONE, TensorSpec(name="w", datatype="FP32", shape=(2,))), OUT),
    ],
)
def test_only_batches_are_joined(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    session = ModelSession(doubled)
    joiner = Joiner(session, inputs, outputs, session.clock)
    for _ in range(3):
        run(joiner, [array([1, 2]), array([3, 4])])
    assert set(session.runs) == {1}


def test_a_stream_is_one_sample_at_a_time() -> None:
    session = ModelSession(doubled)
    joiner = session.joiner()
    values = array([1, 2], [3, 4], [5, 6])
    answers, joined = run(joiner, [values, array([7, 8])], stream=True)
    assert np.array_equal(answers[0], values * 2)
    assert joined == [1, 1]
    assert session.runs == [1, 1, 1, 1]
