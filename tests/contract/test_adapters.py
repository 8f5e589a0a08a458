"""What every adapter must do when it is called, asked of each in the same words."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime_adapters import registry
from runtime_adapters.checks import MAX_REASON
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.protocol import Limits, Session, Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from tests.contract.adapter_models import (
    KITS,
    LIMITS,
    WIDTH,
    Kit,
    batch,
    expected,
    only,
    resident_bytes,
    values,
)
from tests.simulators.patience import PATIENCE_S
from wire.package.tensors import Datatype
from wire.package.variant import VariantInfo

TYPED = [(kit, datatype) for kit in KITS for datatype in kit.datatypes]


@pytest.mark.parametrize(
    ("kit", "datatype"),
    TYPED,
    ids=[f"{kit.name}-{datatype}" for kit, datatype in TYPED],
    indirect=["kit"],
)
def test_every_type_goes_in_and_out(kit: Kit, datatype: Datatype, tmp_path: Path) -> None:
    session = registry.open_session(tmp_path, kit.copying(tmp_path, datatype), LIMITS)
    inputs = {"x": values(datatype, 2)}
    answer = session.infer(inputs)["y"]
    assert answer.dtype == DTYPES[datatype]
    assert answer.shape == (2, 2 * WIDTH)
    np.testing.assert_array_equal(answer, expected(kit, session, inputs))


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_the_batch_may_have_any_size(kit: Kit, session: Session, rows: int) -> None:
    for size in (3, rows, 3):
        inputs = batch(size, seed=size)
        answer = session.infer(inputs)["y"]
        assert answer.shape == (size, 2 * WIDTH)
        np.testing.assert_array_equal(answer, expected(kit, session, inputs))


def test_a_sample_is_answered_alike_alone_and_in_a_batch(session: Session) -> None:
    inputs = batch(5)
    together = session.infer(inputs)["y"]
    alone = [session.infer({"x": inputs["x"][i : i + 1]})["y"] for i in range(5)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-6)


def unaligned(tensor: Tensor) -> Tensor:
    data = b"?" + tensor.tobytes()
    return np.frombuffer(data, dtype=np.uint8)[1:].view(tensor.dtype).reshape(tensor.shape)


@pytest.mark.parametrize(
    "awkward",
    [
        pytest.param(np.asfortranarray, id="fortran order"),
        pytest.param(lambda x: np.repeat(x, 2, axis=0)[::2], id="strided"),
        pytest.param(lambda x: x[::-1, ::-1].copy()[::-1, ::-1], id="negative strides"),
        pytest.param(
            lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape), id="read-only"
        ),
        pytest.param(lambda x: np.broadcast_to(x[:1], x.shape), id="broadcast"),
        pytest.param(unaligned, id="unaligned"),
    ],
)
def test_an_array_may_lie_in_memory_in_any_way(session: Session, awkward: object) -> None:
    assert callable(awkward)
    changed = awkward(batch(4)["x"])
    plain = np.array(changed.tolist(), np.float32)
    first, right, again = (session.infer({"x": x})["y"] for x in (changed, plain, changed))
    np.testing.assert_array_equal(first, right)
    np.testing.assert_array_equal(again, right)


X = values("FP32", 2)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "'x' is missing"),
        ({"z": X}, "no input 'z'"),
        ({"x": X, "z": X}, "no input 'z'"),
        ({"x": X.astype(np.float64)}, "float64"),
        ({"x": X.astype(">f4")}, ">f4"),
        ({"x": X.tolist()}, "a list"),
        ({"x": X[0]}, "shape [3]"),
        ({"x": X[np.newaxis]}, "shape [1, 2, 3]"),
        ({"x": X[:, :2]}, "shape [2, 2]"),
        ({"x": np.float32(1)}, "a float32"),
    ],
)
def test_an_undeclared_input_is_refused(session: Session, inputs: Tensors, words: str) -> None:
    for _ in range(2):  # before a good call and after it
        with pytest.raises(InputError, match=words.replace("[", r"\[")):
            session.infer(inputs)
        session.infer({"x": X})


@pytest.mark.parametrize("rows", [1, 2])
def test_answers_belong_to_the_caller(kit: Kit, session: Session, rows: int) -> None:
    inputs = batch(rows)
    right = expected(kit, session, inputs).copy()
    first = session.infer(inputs)["y"]
    session.infer(batch(rows, seed=9))
    np.testing.assert_array_equal(first, right)
    assert not np.shares_memory(first, inputs["x"])
    first[...] = 0
    second = session.infer(inputs)["y"]
    session.close()
    np.testing.assert_array_equal(second, right)


def test_a_caller_may_reuse_its_input(session: Session) -> None:
    inputs = batch(2)
    first = session.infer(inputs)["y"].copy()
    inputs["x"][...] += 1
    assert not np.array_equal(session.infer(inputs)["y"], first)


def test_a_closed_session_refuses_and_closes_again(session: Session) -> None:
    session.infer(batch())
    session.close()
    session.close()
    with pytest.raises(InferenceError, match="closed"):
        session.infer(batch())
    assert session.describe().runtime


def test_calls_from_many_threads_do_not_mix(kit: Kit, session: Session) -> None:
    batches = [batch(1 + seed % 3, seed=seed) for seed in range(24)]
    right = [expected(kit, session, inputs) for inputs in batches]

    def many(start: int) -> bool:
        order = [(start + step) % len(batches) for step in range(100)]
        return all(
            np.array_equal(session.infer(batches[index])["y"], right[index]) for index in order
        )

    with ThreadPoolExecutor(max_workers=4) as pool:
        assert all(pool.map(many, range(4)))


def test_closing_under_calls_gives_an_answer_or_an_error(kit: Kit, session: Session) -> None:
    inputs = batch()
    right = expected(kit, session, inputs)

    def until_closed(_: int) -> int:
        for count in range(1_000_000):
            try:
                answer = session.infer(inputs)["y"]
            except InferenceError:
                return count
            assert np.array_equal(answer, right)
        raise AssertionError

    with ThreadPoolExecutor(max_workers=3) as pool:
        ended = [pool.submit(until_closed, index) for index in range(3)]
        for _ in range(50):
            session.infer(inputs)
        session.close()
        assert all(future.result(timeout=PATIENCE_S) >= 0 for future in ended)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_answer(
    kit: Kit, info: VariantInfo, tmp_path: Path, threads: int
) -> None:
    session = registry.open_session(tmp_path, info, Limits(threads=threads))
    inputs = batch(3)
    np.testing.assert_array_equal(session.infer(inputs)["y"], expected(kit, session, inputs))


@only("adds")
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_that_do_not_fit_fail_and_get_no_earlier_answer(
    kit: Kit, tmp_path: Path, threads: int
) -> None:
    session = registry.open_session(tmp_path, kit.adding(tmp_path), Limits(threads=threads))
    sizes = [(2, 3), (2, 2), (2, 2), (2, 3), (0, 2), (0, 0), (2, 3), (3, 3), (3, 2), (2, 2)]
    for x_size, z_size in sizes:
        inputs = {"x": values("FP32", x_size, seed=1), "z": values("FP32", z_size, seed=2)}
        if x_size == z_size:
            answer = session.infer(inputs)["y"]
            assert answer.shape == inputs["x"].shape
            if kit.copies:
                np.testing.assert_array_equal(answer, inputs["x"] ** 2 + inputs["z"])
        else:
            with pytest.raises(InferenceError) as caught:
                session.infer(inputs)
            assert "\n" not in caught.value.message
            assert len(caught.value.message) < MAX_REASON + 100


@only("shapes_from_values")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_shape_that_depends_on_values_may_fail_at_any_call(
    kit: Kit, tmp_path: Path, threads: int
) -> None:
    session = registry.open_session(tmp_path, kit.reshaping(tmp_path), Limits(threads=threads))
    x = values("FP32", 2).reshape(6)
    for rows, columns in [(2, 3), (2, 3), (2, 2), (3, 2), (4, 4), (2, 2), (1, 6)]:
        inputs = {"x": x, "shape": np.array([rows, columns], np.int64)}
        if rows * columns == x.size:
            np.testing.assert_array_equal(session.infer(inputs)["y"], x.reshape(rows, columns))
        else:
            with pytest.raises(InferenceError, match=r"shape") as caught:
                session.infer(inputs)
            assert "\n" not in caught.value.message
            assert len(caught.value.message) < MAX_REASON + 100


@only("adds")
def test_tensors_go_by_name_in_any_order(kit: Kit, tmp_path: Path) -> None:
    info = kit.adding(tmp_path)
    x, z, q = (msgspec.structs.replace(info.outputs[0], name=name) for name in "xzq")
    turned = msgspec.structs.replace(info, inputs=(z, x), outputs=(*info.outputs, q))
    session = registry.open_session(tmp_path, turned, LIMITS)
    for rows in (1, 3):
        inputs = {"x": values("FP32", rows, seed=1), "z": values("FP32", rows, seed=2)}
        answers = session.infer(dict(reversed(inputs.items())))
        assert list(answers) == ["y", "q"]
        if kit.copies:
            np.testing.assert_array_equal(answers["q"], inputs["x"] ** 2)
            np.testing.assert_array_equal(answers["y"], inputs["x"] ** 2 + inputs["z"])


def test_sessions_of_one_model_do_not_share_memory(
    kit: Kit, info: VariantInfo, tmp_path: Path
) -> None:
    sessions = [registry.open_session(tmp_path, info, LIMITS) for _ in range(3)]
    batches = [batch(1 + seed, seed=seed) for seed in range(3)]
    right = [expected(kit, sessions[0], inputs) for inputs in batches]

    def many(index: int) -> bool:
        answers = (sessions[index].infer(batches[index])["y"] for _ in range(100))
        return all(np.array_equal(answer, right[index]) for answer in answers)

    with ThreadPoolExecutor(max_workers=3) as pool:
        assert all(pool.map(many, range(3)))
    sessions[0].close()
    assert many(1)


@only("adds")
def test_calls_and_faults_give_memory_back(kit: Kit, tmp_path: Path) -> None:
    session = registry.open_session(tmp_path, kit.adding(tmp_path), LIMITS)

    def call(number: int) -> None:
        rows = number % 5
        sizes = {"x": rows, "z": rows if number % 2 else 9}
        with contextlib.suppress(InferenceError):
            session.infer({name: values("FP32", size) for name, size in sizes.items()})

    for number in range(200):
        call(number)
    before = resident_bytes()
    for number in range(2_000):
        call(number)
    assert resident_bytes() - before < 1024**2
