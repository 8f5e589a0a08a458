"""Profiles by layer, as the real runtimes give them: in a build, of a package, and of one model."""

from __future__ import annotations

import importlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from controller.cli import main
from packager.layers.sums import layers_us
from packager.layers.values import LayerProfile
from packager.package.directory import open_package
from packager.plan.steps import layers_step
from packager.plan.values import Candidate, Plan
from packager.result import layers_notes
from packager.run.cache import Cache
from packager.run.pipeline import Pipeline, Source, Toolchain
from packager.run.process import StepLimits
from packager.runtimes.table import RUNTIMES
from packager.steps.functions import ProfileLayers
from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits, Tensor
from tests.contract.compiled_files import missing, write_module
from tests.integration.builds import QUICK, build_command, built, candidate, digits, write_profile
from tests.models import DIGITS, SATURATES, trained, uniform
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

IMAGE = uniform(1, 1, 8, 8)
RUNS = 8
FIGURES = Performance(
    latency_p50_ms=300.0, latency_p95_ms=300.0, load_ms=1.0, first_inference_ms=1.0,
    peak_memory_bytes=1, runs=1, threads=1, machine="this one",
)  # fmt: skip


class Images(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
    def __init__(self) -> None:
        self._rows = iter(uniform(8, 1, 1, 8, 8))

    def get_next(self) -> dict[str, Tensor] | None:
        row = next(self._rows, None)
        return None if row is None else {"input": row}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qdq") / "digits.onnx"
    quantize_static(
        str(DIGITS), str(path), Images(), quant_format=QuantFormat.QDQ, reduce_range=SATURATES
    )
    return path


def digits_info(
    runtime: str = "onnxruntime", file: str = "digits.onnx", **options: str
) -> VariantInfo:
    return VariantInfo(
        runtime=runtime,
        precision="any",
        model_file=file,
        options=options,
        inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, 1, 8, 8)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(-1, 10)),),
        size_bytes=0,
    )


def profiled(runtime: str, model: Path, workspace: Path, **options: str) -> LayerProfile:
    """Profile a model of the digits in this process."""
    info = digits_info(runtime, model.name, **options)
    profile: ProfileLayers = importlib.import_module(
        f"packager.runtimes.{runtime}.layers"
    ).profile_layers
    return profile(
        model.parent,
        info,
        {"input": IMAGE},
        limits=Limits(),
        runs=RUNS,
        machine="this one",
        workspace=workspace,
    )


def fused_together(profile: LayerProfile, *names: str) -> bool:
    return any(set(names) <= set(layer.fused) for layer in profile.layers)


def model_nodes(model: Path) -> set[str]:
    return {node.name for node in onnx.load(str(model)).graph.node if node.op_type != "Constant"}


def test_the_layers_of_onnx_runtime_are_parts_of_the_inference(tmp_path: Path) -> None:
    found = profiled("onnxruntime", DIGITS, tmp_path)
    assert found.inference_us is not None
    # Each node runs within an inference; what is left is the time between them.
    assert 0.1 * found.inference_us < layers_us(found) <= found.inference_us
    assert 0 < found.runs <= RUNS
    assert not found.untold
    assert all(layer.calls == 1 for layer in found.layers)


def test_onnx_runtime_fuses_an_activation_and_a_residual(tmp_path: Path) -> None:
    found = profiled("onnxruntime", DIGITS, tmp_path)
    assert fused_together(found, "/0/Conv", "/2/Relu")
    told = {name for layer in found.layers for name in layer.fused} | set(found.removed)
    assert told == model_nodes(DIGITS)


def test_without_optimisation_each_node_is_a_layer(tmp_path: Path) -> None:
    found = profiled("onnxruntime", DIGITS, tmp_path, graph_optimization_level="disabled")
    assert {layer.fused for layer in found.layers} == {(name,) for name in model_nodes(DIGITS)}
    weights = onnx.load(str(DIGITS)).graph.initializer
    assert found.weights_bytes == sum(len(tensor.raw_data) for tensor in weights)


def test_the_memory_of_values_is_between_one_layer_and_all_of_them(tmp_path: Path) -> None:
    for runtime in ("onnxruntime", "openvino"):
        workspace = tmp_path / runtime
        workspace.mkdir()
        found = profiled(runtime, DIGITS, workspace)
        sizes = [layer.output_bytes for layer in found.layers]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):  # OpenVINO tells no sizes where the batch is open
            assert found.memory is None
            continue
        assert found.memory is not None
        assert max(known) <= found.memory.peak_bytes <= IMAGE.nbytes + sum(known)
        assert found.memory.at in {layer.name for layer in found.layers}
        assert "computed" in found.memory.source


def test_an_int8_model_computes_in_integers(quantized: Path, tmp_path: Path) -> None:
    for runtime, operator in (("onnxruntime", "QLinearConv"), ("openvino", "Convolution")):
        workspace = tmp_path / runtime
        workspace.mkdir()
        found = profiled(runtime, quantized, workspace)
        convolutions = [layer for layer in found.layers if layer.operator == operator]
        assert convolutions
        for layer in convolutions:
            assert layer.precision.startswith(("uint8", "int8")), layer
        assert any(len(layer.fused) > 1 for layer in convolutions)


def test_openvino_tells_what_it_fused(tmp_path: Path) -> None:
    found = profiled("openvino", DIGITS, tmp_path)
    assert fused_together(found, "/0/Conv", "/2/Relu")
    assert found.inference_us is not None
    # Its counters are whole microseconds, so a layer's mean may be one off.
    assert 0 < layers_us(found) <= found.inference_us + 2 * len(found.layers)


@pytest.mark.skipif(missing("iree") is not None, reason=str(missing("iree")))
def test_iree_tells_the_functions_that_it_dispatches(tmp_path: Path) -> None:
    module = tmp_path / "model.vmfb"
    write_module(module, onnx.load(str(DIGITS)))
    found = profiled("iree", module, tmp_path)
    assert found.inference_us is not None
    assert 0 < layers_us(found) <= found.inference_us * 1.05
    assert any(layer.precision == "fp32" for layer in found.layers)
    assert found.memory is not None
    assert found.memory.peak_bytes > 0
    assert "names" in found.notes[0]


def test_litert_lists_the_operators_and_says_that_it_tells_no_times(tmp_path: Path) -> None:
    from runtime_adapters.litert.library import litert

    model = shutil.copy(trained("mlperf_tiny/ic_resnet8_int8.tflite"), tmp_path)
    interpreter = litert.Interpreter(model_path=str(model))
    info = VariantInfo(
        runtime="litert",
        precision="int8",
        model_file=Path(model).name,
        inputs=(),
        outputs=(),
        size_bytes=0,
    )
    profile: Any = importlib.import_module("packager.runtimes.litert.layers").profile_layers
    found: LayerProfile = profile(
        tmp_path, info, {}, limits=Limits(), runs=1, machine="m", workspace=tmp_path
    )
    assert "no profiler" in found.untold
    assert {layer.time_us for layer in found.layers} == {None}
    assert {layer.precision for layer in found.layers} == {"int8"}
    assert {layer.kernel for layer in found.layers} <= {"XNNPACK", "CPU"}
    image = interpreter.get_input_details()[0]["shape"].prod()
    assert found.memory is not None
    assert found.memory.peak_bytes >= image
    assert any(len(layer.fused) > 1 for layer in found.layers)


def branching(path: Path) -> Path:
    """Write a model with a branch, in which all of its work is."""
    weights = numpy_helper.from_array(uniform(64, 64), "w")

    def branch(name: str, times: int) -> onnx.GraphProto:
        values = ["flat", *(f"{name}{i}" for i in range(times))]
        nodes = [
            helper.make_node("MatMul", [before, "w"], [after], name=f"product_{after}")
            for before, after in pairwise(values)
        ]
        answer = helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, ["batch", 64])
        return helper.make_graph(nodes, name, [], [answer])

    columns = numpy_helper.from_array(np.arange(10), "columns")
    size = numpy_helper.from_array(np.array([-1, 64]), "size")
    zero = numpy_helper.from_array(np.float32(-1.0), "zero")
    nodes = [
        helper.make_node("Reshape", ["input", "size"], ["flat"], name="flatten"),
        helper.make_node("ReduceMax", ["flat"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["condition"], name="ask"),
        helper.make_node(
            "If", ["condition"], ["chosen"], name="choose",
            then_branch=branch("many", 9), else_branch=branch("few", 2),
        ),
        helper.make_node("Gather", ["chosen", "columns"], ["logits"], name="cut", axis=1),
    ]  # fmt: skip
    ends = [("input", ["batch", 1, 8, 8]), ("logits", ["batch", 10])]
    first, last = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "branching", [first], [last], [weights, columns, size, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def test_the_time_of_a_branch_counts_once(tmp_path: Path) -> None:
    found = profiled("onnxruntime", branching(tmp_path / "branching.onnx"), tmp_path)
    names = [layer.name for layer in found.layers]
    assert "choose" in names
    assert not any(name.startswith("product") for name in names)
    assert found.inference_us is not None
    assert layers_us(found) <= found.inference_us


def test_a_model_that_does_not_load_is_a_fault_of_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(LoadError):
        profiled("onnxruntime", broken, tmp_path)


def test_a_profile_that_fails_is_a_note_and_no_fault(tmp_path: Path) -> None:
    sound, broken = tmp_path / "sound", tmp_path / "broken"
    for folder in (sound, broken, tmp_path / "data" / "gate"):
        folder.mkdir(parents=True)
    shutil.copy(DIGITS, sound / "digits.onnx")
    (broken / "digits.onnx").write_bytes(b"no model")
    np.save(tmp_path / "data" / "gate" / "first.input.npy", IMAGE)
    folders = {"sound": sound, "broken": broken, "data": tmp_path / "data"}
    with ThreadPoolExecutor(1) as executor:
        pipeline = Pipeline(
            {name: Source(path=path, sha256=name) for name, path in folders.items()},
            cache=Cache(tmp_path / "cache"),
            toolchain=Toolchain(tools={}, code="code", machine="this one"),
            limits=StepLimits(),
            executor=executor,
            progress=lambda _line: None,
        )
        candidates = [
            Candidate(
                name=name, recipe="any", build=name, files=("digits.onnx",), info=digits_info(),
                steps=(), tools=(),
            )
            for name in ("sound", "broken")
        ]  # fmt: skip
        pipeline.run([layers_step(c, FIGURES, RUNTIMES) for c in candidates])
    plan = Plan(steps=(), candidates=tuple(candidates), impossible=())
    (note,) = layers_notes(plan, pipeline)
    assert note.startswith("broken has no profile by layer: layers-broken: ")
    found = pipeline.result("layers-sound", LayerProfile)
    assert found.machine == "this one"
    assert fused_together(found, "/0/Conv", "/2/Relu")


class Made(NamedTuple):
    result: dict[str, Any]
    package: Path
    page: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = digits(tmp_path_factory.mktemp("layers"))
    profile = write_profile(folder, "onnxruntime", "openvino", features=("avx2", "fma", "sse4_2"))
    package, report, page = folder / "made", folder / "report.json", folder / "report.html"
    command = build_command(
        folder, profile, package, *QUICK, "--profile-layers", "--keep", "openvino-int8-reduced",
        "--report", str(report), "--report", str(page),
    )  # fmt: skip
    assert main(command) == 0
    return Made(json.loads(report.read_bytes()), package, page.read_text())


@pytest.mark.thorough
def test_a_build_profiles_the_variants_that_it_keeps_and_no_others(made: Made) -> None:
    kept = {variant.name for variant in open_package(made.package)[0].variants}
    assert {"onnxruntime-fp32", "openvino-int8-reduced"} <= kept
    profiled_names = {c["name"] for c in made.result["candidates"] if c["layers"]}
    assert profiled_names == kept
    steps = {step["name"] for step in made.result["steps"] if step["name"].startswith("layers-")}
    assert steps == {f"layers-{name}" for name in kept}
    profile = candidate(made.result, "openvino-int8-reduced")["layers"]
    assert any(layer["precision"].startswith("uint8") for layer in profile["layers"])
    assert profile["memory"]["peak_bytes"] > IMAGE.size


def test_the_page_shows_each_profile(made: Made) -> None:
    _, _, section = made.page.partition("<h2>Layers</h2>")
    assert section.count('<details class="layers">') == len(
        [c for c in made.result["candidates"] if c["layers"]]
    )
    assert "sum of the layers" in section
    assert "/0/Conv, /2/Relu" in section


def test_a_package_is_profiled_without_a_build(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["package", "layers", str(made.package), "--variant", "onnxruntime-fp32"]
    capsys.readouterr()
    assert main([*command, "--runs", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    built_layers = candidate(made.result, "onnxruntime-fp32")["layers"]["layers"]
    assert [x["name"] for x in found["layers"]] == [x["name"] for x in built_layers]
    assert main([*command, "--runs", "4"]) == 0
    shown = capsys.readouterr()
    assert "sum of the layers" in shown.out
    assert "Conv" in shown.out
    assert "does not say what it fused" in shown.err


def test_a_variant_that_is_not_there_is_a_fault_of_one_line(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["package", "layers", str(made.package), "--variant", "none"]) == 2
    told = capsys.readouterr().err
    assert "no variant 'none'" in told
    assert "onnxruntime-fp32" in told


def test_a_build_profiles_nothing_unless_it_is_asked(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.package.parent
    command = build_command(folder, folder / "box.toml", tmp_path / "plain", *QUICK)
    result = built(capsys, [*command, "--keep", "openvino-int8-reduced"])
    assert not any(step["name"].startswith("layers-") for step in result["steps"])
    assert {c["layers"] for c in result["candidates"]} == {None}
