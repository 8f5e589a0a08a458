"""Compiled models against ONNX Runtime: on this machine, and for others under emulation."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.errors import StepError
from packager.plan.targets import TARGETS, Target, named
from packager.runtimes.tvm.emulation import run_emulated
from packager.runtimes.tvm.spec import missing_to_build
from packager.sources.onnx_model import facts_of
from packager.tools import toolchains
from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.protocol import Limits, Session, Tensors
from runtime_adapters.tensors import DTYPES
from runtime_adapters.tvm.abi import SYMBOLS, CompiledModel
from runtime_adapters.tvm.adapter import ADAPTER
from runtime_adapters.tvm.library import Library
from tests.models import DIGITS
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

tvm_models = pytest.importorskip("packager.runtimes.tvm.models")
pytest.importorskip("tvm")

INPUTS = (TensorSpec(name="input", datatype="FP32", shape=(-1, 1, 8, 8)),)
OUTPUTS = (TensorSpec(name="logits", datatype="FP32", shape=(-1, 10)),)
SAMPLES = {"input": np.random.default_rng(1).random((3, 1, 8, 8), np.float32)}
HERE = next((t for t in reversed(TARGETS) if toolchains.natively_runnable(t)), None)
"""The least demanding target of this machine."""

CROSS = ("aarch64", "aarch64-dotprod", "armv7", "armv7-vfpv4", "riscv64")
BATCH, FLOAT, INT64 = "n", TensorProto.FLOAT, TensorProto.INT64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tvm")


@pytest.fixture(scope="module")
def here() -> Target:
    if HERE is None or missing_to_build(HERE) is not None:
        pytest.skip(f"no compiler for {os.uname().machine}")
    return HERE


@pytest.fixture(scope="module")
def library(folder: Path, here: Target) -> Path:
    target = folder / "digits.so"
    tvm_models.compile_model(DIGITS, INPUTS, OUTPUTS, here, target)
    return target


def reference(model: Path, inputs: Tensors) -> Tensors:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def opened(
    library: Path, inputs: Sequence[TensorSpec] = INPUTS, outputs: Sequence[TensorSpec] = OUTPUTS
) -> Session:
    info = VariantInfo(
        runtime="tvm", precision="fp32", model_file=library.name,
        inputs=tuple(inputs), outputs=tuple(outputs), size_bytes=1,
    )  # fmt: skip
    return ADAPTER.load(library.parent, info, Limits())


def tiny(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, tuple[int | str, ...]]],
    outputs: dict[str, tuple[int, tuple[int | str, ...]]],
    **constants: np.ndarray,
) -> tuple[Path, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Write a small model and return its path, inputs and outputs."""
    made = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "tiny.onnx"
    onnx.save(model, str(path))
    facts = facts_of(model, ())
    return path, facts.inputs, facts.outputs


def checked(
    folder: Path,
    here: Target,
    made: tuple[Path, tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
    samples: Tensors,
    tolerance: float = 1e-6,
) -> tuple[CompiledModel, Session]:
    """Compile a model, compare its answers with ONNX Runtime's, and return it."""
    path, inputs, outputs = made
    abi = tvm_models.compile_model(path, inputs, outputs, here, folder / "tiny.so")
    session = opened(folder / "tiny.so", inputs, outputs)
    answers, right = session.infer(samples), reference(path, samples)
    assert answers.keys() == right.keys()
    for name, answer in answers.items():
        assert answer.dtype == right[name].dtype
        np.testing.assert_allclose(answer, right[name], rtol=tolerance, atol=tolerance)
    return abi, session


def test_answers_are_those_of_onnxruntime(library: Path) -> None:
    answers = opened(library).infer(SAMPLES)
    np.testing.assert_allclose(
        answers["logits"], reference(DIGITS, SAMPLES)["logits"], rtol=1e-5, atol=1e-5
    )


def test_a_library_needs_the_c_library_alone_and_shows_its_interface_alone(library: Path) -> None:
    if shutil.which("readelf") is None or shutil.which("nm") is None:
        pytest.skip("binutils are not installed")
    dynamic = subprocess.run(
        ["readelf", "-dW", library], check=True, capture_output=True, text=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line]
    assert needed == ["libc.so.6"]
    assert "BIND_NOW" in dynamic
    headers = subprocess.run(
        ["readelf", "-lW", library], check=True, capture_output=True, text=True
    ).stdout
    assert "GNU_RELRO" in headers
    (stack,) = [line for line in headers.splitlines() if "GNU_STACK" in line]
    assert " RWE " not in stack
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == set(SYMBOLS)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["aarch64", "riscv64", "here"])
def test_equal_models_give_equal_bytes_and_tell_nothing(
    name: str, folder: Path, here: Target
) -> None:
    target = here if name == "here" else named(name)
    if package := missing_to_build(target):
        pytest.skip(f"{package} is not installed")
    digests = set()
    for place in ("a", "a/longer/path"):
        made = folder / name / place
        made.mkdir(parents=True)
        tvm_models.compile_model(DIGITS, INPUTS, OUTPUTS, target, made / "model.so")
        content = (made / "model.so").read_bytes()
        digests.add(hashlib.sha256(content).hexdigest())
        assert str(folder).encode() not in content
        assert sorted(path.name for path in made.glob("model*")) == ["model.so"]
    assert len(digests) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CROSS)
def test_other_processors_answer_alike_under_emulation(name: str, tmp_path: Path) -> None:
    target = named(name)
    if package := missing_to_build(target) or toolchains.missing_to_try(target):
        pytest.skip(f"{package} is not installed")
    library = tmp_path / "model.so"
    abi = tvm_models.compile_model(DIGITS, INPUTS, OUTPUTS, target, library)
    answers = run_emulated(
        library, target, SAMPLES, abi.inputs, abi.outputs, workspace=tmp_path, timeout_s=60
    )
    np.testing.assert_allclose(
        answers["logits"], reference(DIGITS, SAMPLES)["logits"], rtol=1e-5, atol=1e-5
    )


def test_when_time_is_up_the_answers_so_far_count(tmp_path: Path) -> None:
    target = named("aarch64")
    if package := missing_to_build(target) or toolchains.missing_to_try(target):
        pytest.skip(f"{package} is not installed")
    library = tmp_path / "model.so"
    abi = tvm_models.compile_model(DIGITS, INPUTS, OUTPUTS, target, library)
    many = {"input": np.random.default_rng(2).random((20_000, 1, 8, 8), np.float32)}

    def run(timeout_s: float) -> Tensors:
        return run_emulated(
            library, target, many, abi.inputs, abi.outputs, workspace=tmp_path, timeout_s=timeout_s
        )

    answers = run(2.0)["logits"]
    assert 1 <= len(answers) < 20_000
    right = reference(DIGITS, {"input": many["input"][: len(answers)]})["logits"]
    np.testing.assert_allclose(answers, right, rtol=1e-4, atol=1e-4)
    with pytest.raises(StepError, match="no sample within"):
        run(0.001)


def test_code_that_dies_under_emulation_is_one_error(tmp_path: Path) -> None:
    target = named("riscv64")
    if package := missing_to_build(target) or toolchains.missing_to_try(target):
        pytest.skip(f"{package} is not installed")
    source = tmp_path / "bad.c"
    source.write_text(
        "const char *edgefleet_error(void) { return 0; }\n"
        "int edgefleet_run(const void *const *in, void *const *out) { *(int *)8 = 1; return 0; }\n",
        encoding="ascii",
    )
    compiler = toolchains.compiler(target)
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", tmp_path / "bad.so"], check=True)
    for library, words in (("bad.so", "ended by SIG|fault|signal"), ("bad.c", "library: ")):
        with pytest.raises(StepError, match=words):
            run_emulated(
                tmp_path / library, target, SAMPLES, INPUTS, OUTPUTS,
                workspace=tmp_path, timeout_s=30,
            )  # fmt: skip
    with pytest.raises(StepError, match="float64"):
        run_emulated(
            tmp_path / "bad.so", target, {"input": np.zeros((1, 1, 8, 8))}, INPUTS, OUTPUTS,
            workspace=tmp_path, timeout_s=30,
        )  # fmt: skip


def test_several_inputs_outputs_and_types(tmp_path: Path, here: Target) -> None:
    made = tiny(
        tmp_path,
        [
            helper.make_node("Cast", ["u"], ["f"], to=FLOAT),
            helper.make_node("Mul", ["f", "scale"], ["scaled"]),
            helper.make_node("Add", ["x.1/a", "scaled"], ["sum"]),
            helper.make_node("Greater", ["sum", "scale"], ["mask"]),
            helper.make_node("Cast", ["sum"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("ArgMax", ["sum"], ["best"], axis=1),
            helper.make_node("Exp", ["sum"], ["exp"]),
            helper.make_node("Identity", ["sum"], ["again"]),
        ],
        {
            "u": (TensorProto.UINT8, (BATCH, 4)),
            "x.1/a": (FLOAT, (BATCH, 4)),
            "unused": (INT64, (BATCH,)),
        },
        {
            "sum": (FLOAT, (BATCH, 4)),
            "mask": (TensorProto.BOOL, (BATCH, 4)),
            "half": (TensorProto.FLOAT16, (BATCH, 4)),
            "best": (INT64, (BATCH, 1)),
            "exp": (FLOAT, (BATCH, 4)),
            "again": (FLOAT, (BATCH, 4)),
        },
        scale=np.array(0.125, np.float32),
    )
    rng = np.random.default_rng(3)
    samples: Tensors = {
        "u": rng.integers(0, 255, (5, 4)).astype(np.uint8),
        "x.1/a": rng.normal(size=(5, 4)).astype(np.float32),
        "unused": np.zeros(5, np.int64),
    }
    checked(tmp_path, here, made, samples)


def test_a_quantized_graph_answers_to_the_last_bit(tmp_path: Path, here: Target) -> None:
    # Seven bits: with eight, the reference itself saturates on processors without VNNI.
    weights = np.random.default_rng(4).integers(-64, 64, (8, 6)).astype(np.int8)
    made = tiny(
        tmp_path,
        [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=1),
            helper.make_node("MatMul", ["d", "dw"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "ms", "xz"], ["mq"]),
            helper.make_node("DequantizeLinear", ["mq", "ms", "xz"], ["y"]),
        ],
        {"x": (FLOAT, (BATCH, 8))},
        {"y": (FLOAT, (BATCH, 6))},
        w=weights,
        ws=np.linspace(0.01, 0.02, 6, dtype=np.float32),
        wz=np.zeros(6, np.int8),
        xs=np.array(0.02, np.float32),
        xz=np.array(128, np.uint8),
        ms=np.array(0.1, np.float32),
    )
    samples = {"x": np.random.default_rng(5).normal(size=(16, 8)).astype(np.float32)}
    checked(tmp_path, here, made, samples, tolerance=0.0)


def awkward(width: int) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Return nodes of many kinds of sums over an image of some width, and their weights."""
    rng = np.random.default_rng(width)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Conv", ["a", "w2"], ["b"], pads=[1, 1, 1, 1], group=6),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]),
        helper.make_node("AveragePool", ["b"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["c", "w3"], ["e"], strides=[2, 2]),
        helper.make_node("ReduceMax", ["d"], ["f"], axes=[2, 3], keepdims=0),
        helper.make_node("Transpose", ["e"], ["g"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["e", "g"], ["h"]),
        helper.make_node("Softmax", ["h"], ["i"], axis=-1),
        helper.make_node("GlobalAveragePool", ["i"], ["j"]),
        helper.make_node("Flatten", ["j"], ["k"]),
        helper.make_node("Concat", ["k", "f"], ["y"], axis=1),
    ]
    shapes = {"w1": (6, 3, 3, 3), "w2": (6, 1, 3, 3), "w3": (6, 5, 2, 2)}
    weights = {k: rng.normal(size=v).astype(np.float32) / 4 for k, v in shapes.items()}
    return nodes, weights


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [14, 21])
def test_sums_of_any_size_are_right_for_every_tile(
    width: int, tmp_path: Path, here: Target
) -> None:
    nodes, weights = awkward(width)
    x, y = (FLOAT, (BATCH, 3, width, width)), (FLOAT, (BATCH, 11))
    made = tiny(tmp_path, nodes, {"x": x}, {"y": y}, **weights)
    samples = {"x": np.random.default_rng(7).normal(size=(2, 3, width, width)).astype(np.float32)}
    for tile in sorted({target.tile for target in TARGETS}):
        target = msgspec.structs.replace(here, tile=tile)
        _, session = checked(tmp_path, target, made, samples, tolerance=1e-5)
        session.close()


def test_indices_are_limited_or_bounded(tmp_path: Path, here: Target) -> None:
    made = tiny(
        tmp_path,
        [
            helper.make_node("Gather", ["table", "i"], ["y"]),
            helper.make_node("Mul", ["i", "i"], ["square"]),
            helper.make_node("Gather", ["table", "square"], ["z"]),
        ],
        {"i": (INT64, (BATCH, 2))},
        {"y": (FLOAT, (BATCH, 2, 4)), "z": (FLOAT, (BATCH, 2, 4))},
        table=np.random.default_rng(6).normal(size=(17, 4)).astype(np.float32),
    )
    abi, session = checked(tmp_path, here, made, {"i": np.array([[0, -4], [4, 3]])})
    assert abi.ranges == {"i": (-17, 16)}
    for _ in range(3):  # its square is out of range: any answer, but an answer
        assert session.infer({"i": np.array([[16, -17]])})["z"].shape == (1, 2, 4)


RECURRENT = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)]


@pytest.mark.parametrize(
    ("nodes", "shape", "output", "words"),
    [
        (
            [helper.make_node("Relu", ["x"], ["y"])],
            (BATCH, "m"),
            (BATCH, "m"),
            "has more variable sizes",
        ),
        ([helper.make_node("NonZero", ["x"], ["y"])], (1, 4), (2, "k"), "no kernel for .*nonzero"),
        ([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], (BATCH, 4), (), "of a batch"),
        ([helper.make_node("Reshape", ["x", "s"], ["y"])], (BATCH, 4), ("k",), "of a batch"),
        (RECURRENT, (1, 2, 4), (1, 1, 2, 2), "LSTM"),
    ],
)
def test_what_cannot_be_compiled_is_one_error(
    nodes: list[onnx.NodeProto],
    shape: tuple[int | str, ...],
    output: tuple[int | str, ...],
    words: str,
    tmp_path: Path,
    here: Target,
) -> None:
    kind = INT64 if nodes[0].op_type == "NonZero" else FLOAT
    path, inputs, outputs = tiny(
        tmp_path,
        nodes,
        {"x": (FLOAT, shape)},
        {"y": (kind, output)},
        s=np.array([-1]),
        w=np.zeros((1, 8, 4), np.float32),
        r=np.zeros((1, 8, 2), np.float32),
    )
    with pytest.raises(StepError, match=words) as caught:
        tvm_models.compile_model(path, inputs, outputs, here, tmp_path / "tiny.so")
    assert "\n" not in caught.value.message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tiny.onnx"]


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    absent = msgspec.structs.replace(
        next(t for t in TARGETS if t.architecture != os.uname().machine), compiler="no-such-gcc"
    )
    with pytest.raises(StepError) as caught:
        tvm_models.compile_model(DIGITS, INPUTS, OUTPUTS, absent, tmp_path / "model.so")
    assert absent.compiler_package in caught.value.remedy


def test_a_library_says_what_it_is(library: Path, here: Target) -> None:
    loaded = Library(library)
    abi = loaded.model
    loaded.close()
    assert (abi.inputs, abi.outputs) == (INPUTS, OUTPUTS)
    assert (abi.target, abi.architecture) == (here.name, os.uname().machine)
    assert abi.arena_bytes >= 64 * 64 * DTYPES["FP32"].itemsize
    assert abi.constants_bytes < library.stat().st_size
