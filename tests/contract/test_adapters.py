"""What every adapter must do, asked of each in the same words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime_adapters import registry
from runtime_adapters.checks import MAX_REASON
from runtime_adapters.errors import InferenceError, InputError, LoadError
from runtime_adapters.protocol import Limits, Session, SessionDescription, Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from tests.contract.adapter_models import KITS, WIDTH, Kit, copying_onnx, resident_bytes, values
from wire.manifest import Datatype, TensorSpec, VariantInfo

LIMITS = Limits()
REAL = pytest.mark.parametrize(
    "kit", [kit for kit in KITS if kit.copies], ids=lambda kit: kit.runtime, indirect=True
)
"""For what a null model cannot break, being whatever its declaration says."""

TYPED = [(kit, datatype) for kit in KITS for datatype in kit.datatypes]


@pytest.fixture(params=KITS, ids=lambda kit: kit.runtime)
def kit(request: pytest.FixtureRequest) -> Kit:
    chosen: Kit = request.param
    return chosen


@pytest.fixture
def info(kit: Kit, tmp_path: Path) -> VariantInfo:
    return kit.copying(tmp_path, "FP32")


@pytest.fixture
def session(info: VariantInfo, tmp_path: Path) -> Session:
    return registry.open_session(tmp_path, info, LIMITS)


def batch(rows: int = 2, *, seed: int = 0) -> Tensors:
    return {"x": values("FP32", rows, seed=seed)}


def expected(kit: Kit, session: Session, inputs: Tensors) -> Tensor:
    """Return the right answer: known where the model copies, else what a fresh call gives."""
    if kit.copies:
        return np.concatenate([inputs["x"]] * 2, axis=1)
    return session.infer(inputs)["y"]


@pytest.mark.parametrize(
    ("kit", "datatype"), TYPED, ids=[f"{kit.runtime}-{name}" for kit, name in TYPED]
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
        pytest.param(unaligned, id="unaligned"),
    ],
)
def test_an_array_may_lie_in_memory_in_any_way(session: Session, awkward: object) -> None:
    assert callable(awkward)
    plain = batch(4)
    changed = awkward(plain["x"])
    np.testing.assert_array_equal(session.infer({"x": changed})["y"], session.infer(plain)["y"])


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
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        session.infer(inputs)


def test_answers_belong_to_the_caller(kit: Kit, session: Session) -> None:
    inputs = batch(2)
    right = expected(kit, session, inputs).copy()
    first = session.infer(inputs)["y"]
    session.infer(batch(2, seed=9))
    np.testing.assert_array_equal(first, right)
    assert not np.shares_memory(first, inputs["x"])
    first[...] = 0
    np.testing.assert_array_equal(session.infer(inputs)["y"], right)


def test_a_caller_may_reuse_its_input(session: Session) -> None:
    inputs = batch(2)
    first = session.infer(inputs)["y"].copy()
    inputs["x"][...] += 1
    assert not np.array_equal(session.infer(inputs)["y"], first)


def test_a_session_says_what_it_is(kit: Kit, session: Session, info: VariantInfo) -> None:
    description = session.describe()
    assert description.runtime == kit.runtime
    assert description.version == registry.get(kit.runtime).version() != ""
    assert description.devices == (kit.device,)
    assert description.fallback == ""
    assert (description.inputs, description.outputs) == (info.inputs, info.outputs)
    encoded = msgspec.json.encode(description)
    assert msgspec.json.decode(encoded, type=SessionDescription) == description


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
        assert all(future.result(timeout=30) >= 0 for future in ended)


def refused(tmp_path: Path, info: VariantInfo, limits: Limits = LIMITS) -> LoadError:
    """Load what cannot be loaded and check the form of the error."""
    with pytest.raises(LoadError) as caught:
        registry.open_session(tmp_path, info, limits)
    message = caught.value.message
    assert "\n" not in message
    assert len(message) < MAX_REASON + 100
    assert str(tmp_path) not in message
    return caught.value


def test_a_missing_model_is_a_load_error(kit: Kit, info: VariantInfo, tmp_path: Path) -> None:
    (tmp_path / kit.model_file).unlink()
    assert "is missing" in refused(tmp_path, info).message


@pytest.mark.parametrize("path", ["../model.onnx", "/etc/passwd", "", "a\\b"])
def test_a_model_outside_the_variant_is_refused(
    info: VariantInfo, tmp_path: Path, path: str
) -> None:
    assert "not a plain path" in str(
        refused(tmp_path, msgspec.structs.replace(info, model_file=path))
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_model_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kit.model_file
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert kit.model_file in refused(tmp_path, info).message
    assert capfd.readouterr() == ("", "")


def test_garbage_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / kit.model_file).write_bytes(bytes(range(256)) * 16)
    refused(tmp_path, info)
    assert capfd.readouterr() == ("", "")


@REAL
@pytest.mark.parametrize(
    "change",
    [
        {"inputs": ()},
        {"outputs": ()},
        {"inputs": (TensorSpec(name="z", datatype="FP32", shape=(-1, WIDTH)),)},
        {"inputs": (TensorSpec(name="x", datatype="INT8", shape=(-1, WIDTH)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, WIDTH, 1)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, -1)),)},
        {"inputs": (TensorSpec(name="x", datatype="FP32", shape=(-1, 9)),)},
        {"outputs": (TensorSpec(name="z", datatype="FP32", shape=(-1, 6)),)},
        {"outputs": (TensorSpec(name="y", datatype="FP64", shape=(-1, 6)),)},
        {"outputs": (TensorSpec(name="y", datatype="FP32", shape=(-1, 5)),)},
    ],
)
def test_a_declaration_that_the_model_breaks_is_refused(
    info: VariantInfo, tmp_path: Path, change: dict[str, tuple[TensorSpec, ...]]
) -> None:
    refused(tmp_path, msgspec.structs.replace(info, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": (TensorSpec(name="y", datatype="FP32", shape=(-1, -1)),)},
        {
            "inputs": (TensorSpec(name="x", datatype="FP32", shape=(2, WIDTH)),),
            "outputs": (TensorSpec(name="y", datatype="FP32", shape=(-1, 2 * WIDTH)),),
        },
    ],
)
def test_a_declaration_may_promise_less_than_the_model(
    info: VariantInfo, tmp_path: Path, change: dict[str, tuple[TensorSpec, ...]]
) -> None:
    less = msgspec.structs.replace(info, **change)
    session = registry.open_session(tmp_path, less, LIMITS)
    assert set(session.infer(batch(2))) == {spec.name for spec in less.outputs}


def test_an_unknown_option_is_refused(info: VariantInfo, tmp_path: Path) -> None:
    other = msgspec.structs.replace(info, options={"threads_of_gold": "1"})
    assert "threads_of_gold" in str(refused(tmp_path, other))


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_impossible_limits_are_refused(info: VariantInfo, tmp_path: Path, threads: int) -> None:
    assert "threads" in str(refused(tmp_path, info, Limits(threads=threads)))


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_answer(
    kit: Kit, info: VariantInfo, tmp_path: Path, threads: int
) -> None:
    session = registry.open_session(tmp_path, info, Limits(threads=threads))
    inputs = batch(3)
    np.testing.assert_array_equal(session.infer(inputs)["y"], expected(kit, session, inputs))


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_that_do_not_fit_fail_and_get_no_earlier_answer(
    kit: Kit, tmp_path: Path, threads: int
) -> None:
    session = registry.open_session(tmp_path, kit.adding(tmp_path), Limits(threads=threads))
    sizes = [(2, 3), (2, 2), (2, 2), (2, 3), (2, 3), (3, 3), (3, 2), (2, 2)]
    for x_size, z_size in sizes:
        inputs = {"x": values("FP32", x_size, seed=1), "z": values("FP32", z_size, seed=2)}
        if x_size == z_size:
            answer = session.infer(inputs)["y"]
            assert answer.shape == inputs["x"].shape
            if kit.copies:
                np.testing.assert_array_equal(answer, inputs["x"] ** 2 + inputs["z"])
        else:
            with pytest.raises(InferenceError):
                session.infer(inputs)


@REAL
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


def test_an_unknown_operator_is_a_load_error(
    kit: Kit, info: VariantInfo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kit.model_file
    if kit.runtime == "onnxruntime":
        kit.write(path, copying_onnx("FP32", operator="Frobnicate"))
    else:
        content = path.read_text(encoding="utf-8")
        path.write_text(
            content.replace('type="Concat"', 'type="Frobnicate"').replace("seed", "Frobnicate"),
            encoding="utf-8",
        )
    assert "Frobnicate" in refused(tmp_path, info).message
    assert capfd.readouterr() == ("", "")


def test_loading_and_closing_gives_memory_back(info: VariantInfo, tmp_path: Path) -> None:
    def once() -> None:
        session = registry.open_session(tmp_path, info, LIMITS)
        session.infer(batch())
        session.close()

    for _ in range(10):
        once()
    before = resident_bytes()
    for _ in range(50):
        once()
    assert resident_bytes() - before < 24 * 1024**2
