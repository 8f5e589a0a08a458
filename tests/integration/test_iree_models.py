"""Models compiled by IREE: the right answers, the same bytes, and one line for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from packager.errors import StepError
from packager.plan.targets import TARGETS, Target, named
from packager.run.job import Job
from packager.runtimes.iree.compiler import suggested_options
from packager.runtimes.iree.emulation import iree_runner, run_emulated
from packager.runtimes.iree.models import compile_model, compile_stablehlo
from packager.runtimes.iree.source import prepare
from packager.sources.stablehlo import MODULE_FILE, load
from packager.tools import toolchains
from runtime_adapters.errors import InputError, LoadError
from runtime_adapters.iree.abi import CompiledModel
from runtime_adapters.protocol import Limits, Session, Tensor
from runtime_adapters.registry import open_session
from tests.models import DIGITS, ROOT, SATURATES, uniform
from wire.package.variant import VariantInfo

STABLEHLO = ROOT / "tests" / "data" / "stablehlo"
NATIVE = next(target for target in TARGETS if toolchains.natively_runnable(target))


def opened(path: Path, model: CompiledModel) -> Session:
    info = VariantInfo(
        runtime="iree",
        precision="fp32",
        model_file=path.name,
        inputs=model.inputs,
        outputs=model.outputs,
        size_bytes=path.stat().st_size,
    )
    return open_session(path.parent, info, Limits())


def images(count: int) -> Tensor:
    return uniform(count, 1, 8, 8)


def reference(model: Path, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    answer: Tensor = session.run(None, {session.get_inputs()[0].name: x})[0]
    return answer


class Images(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
    def __init__(self) -> None:
        self._rows = iter(images(32))

    def get_next(self) -> dict[str, Tensor] | None:
        row = next(self._rows, None)
        return None if row is None else {"input": row[np.newaxis]}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qdq") / "digits.onnx"
    quantize_static(
        str(DIGITS), str(path), Images(), quant_format=QuantFormat.QDQ, reduce_range=SATURATES
    )
    return path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompiledModel]:
    path = tmp_path_factory.mktemp("float") / "model.vmfb"
    return path, compile_model(DIGITS, path, NATIVE)


def test_a_model_answers_as_the_reference(compiled: tuple[Path, CompiledModel]) -> None:
    path, model = compiled
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [(-1, 1, 8, 8), (-1, 10)]
    x = images(16)
    answer = opened(path, model).infer({"input": x})["logits"]
    np.testing.assert_allclose(answer, reference(DIGITS, x), rtol=1e-4, atol=1e-4)


def test_equal_models_give_equal_bytes_wherever_they_lie(
    compiled: tuple[Path, CompiledModel], tmp_path: Path
) -> None:
    path, _ = compiled
    other = tmp_path / "elsewhere" / "other.onnx"
    other.parent.mkdir()
    other.write_bytes(DIGITS.read_bytes())
    again = other.with_name("again.vmfb")
    compile_model(other, again, NATIVE)
    assert again.read_bytes() == path.read_bytes()
    assert again.with_suffix(".json").read_bytes() == path.with_suffix(".json").read_bytes()
    for place in (str(tmp_path), str(ROOT), "elsewhere"):
        assert place.encode() not in again.read_bytes()
    assert sorted(p.name for p in other.parent.iterdir()) == [
        "again.json",
        "again.vmfb",
        other.name,
    ]


def test_a_quantized_graph_stays_in_integers(
    quantized: Path, compiled: tuple[Path, CompiledModel], tmp_path: Path
) -> None:
    path = tmp_path / "model.vmfb"
    model = compile_model(quantized, path, NATIVE)
    x = images(16)
    right = reference(quantized, x)
    answer = opened(path, model).infer({"input": x})["logits"]
    step = np.abs(np.diff(np.unique(right))).min()
    assert np.abs(answer - right).max() <= 1.5 * step
    assert (answer.argmax(axis=1) == right.argmax(axis=1)).mean() >= 15 / 16
    assert path.stat().st_size < 0.6 * compiled[0].stat().st_size


@pytest.mark.parametrize("convolutions", ["direct", "im2col"])
def test_options_change_the_code_and_not_the_answers(
    compiled: tuple[Path, CompiledModel], tmp_path: Path, convolutions: str
) -> None:
    chosen = suggested_options({"Conv"}, NATIVE, depthwise=False)
    other = {**chosen, "convolutions": convolutions, "data_tiling": not chosen["data_tiling"]}
    path = tmp_path / "model.vmfb"
    model = compile_model(DIGITS, path, NATIVE, options=other)
    assert path.read_bytes() != compiled[0].read_bytes()
    x = images(4)
    answer = opened(path, model).infer({"input": x})["logits"]
    np.testing.assert_allclose(answer, reference(DIGITS, x), rtol=1e-4, atol=1e-4)


def test_what_suits_depends_on_registers_and_numbers() -> None:
    def convolutions(target: str, *operators: str, depthwise: bool = False) -> Any:
        return suggested_options(operators, named(target), depthwise=depthwise)["convolutions"]

    assert convolutions("x86-64-v3", "Conv") == "im2col"
    assert convolutions("x86-64-v3", "Conv", depthwise=True) == "direct"
    assert convolutions("x86-64-v4", "Conv") == convolutions("aarch64", "Conv") == "direct"
    assert convolutions("x86-64-v4", "Conv", "DequantizeLinear") == "im2col"
    assert suggested_options(("MatMul",), named("x86-64-v3"), depthwise=False)["data_tiling"]


def tiny(
    *nodes: NodeProto,
    inputs: dict[str, tuple[int, list[Any]]],
    constants: dict[str, Any] | None = None,
    output: tuple[int, list[Any]] = (TensorProto.FLOAT, ["n", None]),
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "tiny graph",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info("y", *output)],
        [numpy_helper.from_array(np.array(v), k) for k, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def built(model: onnx.ModelProto, folder: Path) -> tuple[Session, CompiledModel]:
    onnx.save(model, str(folder / "tiny.onnx"))
    made = compile_model(folder / "tiny.onnx", folder / "model.vmfb", NATIVE)
    return opened(folder / "model.vmfb", made), made


TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)


def test_indices_out_of_range_are_refused_or_bounded_and_never_run(tmp_path: Path) -> None:
    looked_up = tiny(
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["x"], ["computed"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "far"], ["more"]),
        helper.make_node("Mul", ["computed", "computed"], ["far"]),
        helper.make_node("Add", ["rows", "more"], ["y"]),
        inputs={"ids": (TensorProto.INT64, ["n", 2]), "x": (TensorProto.FLOAT, ["n", 2])},
        constants={"table": TABLE},
        output=(TensorProto.FLOAT, ["n", 2, 3]),
    )
    nodes = list(looked_up.graph.node)
    del looked_up.graph.node[:]
    looked_up.graph.node.extend([nodes[0], nodes[1], nodes[3], nodes[2], nodes[4]])
    session, model = built(looked_up, tmp_path)
    assert model.ranges == {"ids": (-10, 9)}
    x = np.array([[1, 2], [3, 0]], np.float32)
    ids = np.array([[-10, 9], [0, -1]])
    right = TABLE[ids] + TABLE[(x * x).astype(np.int64)]
    np.testing.assert_array_equal(session.infer({"ids": ids, "x": x})["y"], right)
    for wrong in (10, -11, 2**62):
        with pytest.raises(InputError, match="outside the range -10 to 9"):
            session.infer({"ids": np.array([[0, wrong]]), "x": x[:1]})
    far = session.infer({"ids": ids[:1], "x": np.full((1, 2), 3e4, np.float32)})["y"]
    np.testing.assert_array_equal(far, TABLE[ids[:1]] + TABLE[9])


def test_shapes_that_follow_from_the_batch_are_folded(tmp_path: Path) -> None:
    attention = tiny(
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "first"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["heads", "turned"], ["y"]),
        inputs={"x": (TensorProto.FLOAT, ["n", 6])},
        constants={"first": np.array([0]), "rest": np.array([2, 3])},
        output=(TensorProto.FLOAT, ["n", 2, 2]),
    )
    session, _ = built(attention, tmp_path)
    x = np.random.default_rng(0).random((3, 6)).astype(np.float32)
    heads = x.reshape(3, 2, 3)
    np.testing.assert_allclose(
        session.infer({"x": x})["y"], heads @ heads.transpose(0, 2, 1), rtol=1e-5
    )


def test_an_old_graph_is_converted(tmp_path: Path) -> None:
    old = tiny(
        helper.make_node("Squeeze", ["x"], ["flat"], axes=[2]),
        helper.make_node("Softmax", ["flat"], ["y"], axis=1),
        inputs={"x": (TensorProto.FLOAT, ["n", 3, 1])},
        opset=11,
    )
    session, _ = built(old, tmp_path)
    x = np.array([[[0], [0], [0]]], np.float32)
    np.testing.assert_allclose(session.infer({"x": x})["y"], np.full((1, 3), 1 / 3), rtol=1e-6)


X = {"x": (TensorProto.FLOAT, ["n", 4])}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(
            tiny(helper.make_node("Relu", ["x"], ["y"]), inputs={"x": (1, ["n", "width"])}),
            "has more variable sizes than the batch",
            id="two open sizes",
        ),
        pytest.param(
            tiny(
                helper.make_node("Identity", ["x"], ["y"]),
                inputs={"x": (TensorProto.STRING, ["n", 4])},
                output=(TensorProto.STRING, ["n", 4]),
            ),
            "holds text",
            id="texts",
        ),
        pytest.param(
            tiny(helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0]), inputs=X),
            "cannot be put together",
            id="batch in the middle",
        ),
        pytest.param(
            tiny(
                helper.make_node("Unique", ["x"], ["u"], axis=1),
                helper.make_node("Reshape", ["u", "one"], ["y"]),
                inputs=X,
                constants={"one": np.array([1, -1])},
            ),
            "iree-compile failed: (failed to legalize operation|ended by SIG)",
            id="an operator that IREE lacks",
        ),
    ],
)
def test_what_cannot_be_compiled_is_one_line(
    model: onnx.ModelProto, words: str, tmp_path: Path
) -> None:
    with pytest.raises(StepError, match=words) as caught:
        built(model, tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not list(tmp_path.glob("*.json"))


def test_other_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="no IREE runtime for riscv64"):
        compile_model(DIGITS, tmp_path / "model.vmfb", named("riscv64"))


def foreign() -> Target:
    target = named("aarch64")
    if toolchains.natively_runnable(target):
        pytest.skip("this machine runs aarch64 code by itself")
    return target


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompiledModel, Target]:
    path = tmp_path_factory.mktemp("cross") / "model.vmfb"
    target = foreign()
    return path, compile_model(DIGITS, path, target), target


def test_foreign_code_is_compiled_and_not_loaded(cross: tuple[Path, CompiledModel, Target]) -> None:
    path, model, _ = cross
    assert model.architecture == "aarch64"
    with pytest.raises(LoadError, match="it is built for aarch64"):
        opened(path, model)


def test_foreign_code_answers_under_emulation(
    cross: tuple[Path, CompiledModel, Target], tmp_path: Path
) -> None:
    path, model, target = cross
    try:
        runner = iree_runner(target)
    except StepError as exc:
        pytest.skip(str(exc))
    if toolchains.emulator(target) is None:
        pytest.skip("there is no emulator for aarch64")
    x = images(2)
    answer = run_emulated(
        path, model, target, {"input": x}, runner=runner, workspace=tmp_path, timeout_s=60
    )
    np.testing.assert_allclose(answer["logits"], reference(DIGITS, x), rtol=1e-4, atol=1e-4)
    broken = tmp_path / "broken.vmfb"
    broken.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StepError, match="failed under emulation"):
        run_emulated(
            broken, model, target, {"input": x}, runner=runner, workspace=tmp_path, timeout_s=60
        )


def test_emulation_names_what_is_missing(
    cross: tuple[Path, CompiledModel, Target], tmp_path: Path
) -> None:
    path, model, target = cross
    if toolchains.emulator(target) is None:
        pytest.skip("there is no emulator for aarch64")
    for runner, words in (
        (tmp_path / "none", "not set up"),
        (Path("/bin/sh"), "not a program for"),
    ):
        with pytest.raises(StepError, match=words):
            run_emulated(path, model, target, {}, runner=runner, workspace=tmp_path, timeout_s=1)


@pytest.mark.parametrize("name", ["mlp.stablehlo", "mlp.mlir"])
def test_stablehlo_answers_as_jax_did(name: str, tmp_path: Path) -> None:
    job = Job(
        kind="prepare-stablehlo",
        inputs={"model": str(STABLEHLO / name)},
        options={},
        output=str(tmp_path),
        memory_bytes=0,
        machine="here",
    )
    facts = prepare(job, tmp_path)
    described = msgspec.json.decode((tmp_path / "reference.json").read_bytes(), type=CompiledModel)
    expected = np.load(STABLEHLO / "mlp.npz")
    session = opened(tmp_path / "reference.vmfb", described)
    path = tmp_path / "model.vmfb"
    native = compile_stablehlo(tmp_path / MODULE_FILE, facts.inputs, facts.outputs, path, NATIVE)
    for ready in (session, opened(path, native)):
        rows = [ready.infer({"features": row[np.newaxis]}) for row in expected["features"]]
        scores = np.concatenate([row["scores"] for row in rows])
        np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5, atol=1e-6)


def test_indices_in_stablehlo_are_bounded_by_its_own_rules(tmp_path: Path) -> None:
    content, facts = load(STABLEHLO / "embedding.mlirbc")
    (tmp_path / MODULE_FILE).write_bytes(content)
    path = tmp_path / "model.vmfb"
    model = compile_stablehlo(tmp_path / MODULE_FILE, facts.inputs, facts.outputs, path, NATIVE)
    session = opened(path, model)
    table = np.load(STABLEHLO / "mlp.npz")["table"]
    ids = np.array([[2, 2**30]], np.int32)
    np.testing.assert_array_equal(session.infer({"ids": ids})["result"], table[[[2, 9]]])
