"""Every kind of model that a user may hand in, built by one command and proven as on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from examples.digits.data import load_splits
from runtime_adapters.golden import load_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.integration.builds import (
    QUICK,
    built,
    candidate,
    digits,
    names,
    proven,
    write_profile,
)
from tests.models import ROOT, trained
from tests.simulators.rig import DIGEST, Rig
from wire.package.index import asset_directory

STABLEHLO = ROOT / "tests" / "data" / "stablehlo"

TORCH = '''
"""A small convolutional network for the digits."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

WHERE = Path(__file__).parent


def trained(net, steps):
    with np.load(WHERE / "train.npz") as arrays:
        images, labels = (torch.tensor(arrays[name][:400]) for name in ("x", "label"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net


def make():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 9, 10),
    )
    return trained(net, 40), torch.zeros(1, 1, 8, 8)


def train(net):
    return trained(net.train(), 20)
'''

SKLEARN = '''
"""A pipeline for the digits, and its samples."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

PIXELS, DIGITS = load_digits(return_X_y=True)


def make():
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=50))
    return pipeline.fit(PIXELS[:1200], DIGITS[:1200])


def evaluation():
    for start in range(1200, 1600, 40):
        part = slice(start, start + 40)
        yield {"input": PIXELS[part].astype(np.float32), "label": DIGITS[part]}
'''


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def folders(work: Path) -> dict[str, str]:
    """The digits' samples as folders of `.npy` files, as options of a build."""
    options = {}
    for name, count in (("calibration", 96), ("evaluation", 128)):
        with np.load(work / f"{name}.npz") as arrays:
            options[f"--{name}"] = samples(
                work / name, x=arrays["input"][:count], label=arrays["label"][:count]
            )
    return options


def samples(folder: Path, **arrays: Any) -> str:
    """Write a folder of `.npy` files."""
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def build(
    capsys: pytest.CaptureFixture[str],
    model: Path | str,
    profile: Path,
    output: Path,
    options: dict[str, str],
    *flags: str,
) -> dict[str, Any]:
    """Build with as few measurements as will do."""
    given = [text for pair in options.items() for text in pair]
    command = ["build", str(model), "-p", str(profile), "-o", str(output), *QUICK]
    return built(capsys, [*command, "--cache", str(output.parent / "cache"), *given, *flags])


@pytest.mark.thorough
def test_a_pytorch_function_is_exported_quantized_and_pruned(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter to ONNX is not installed")
    pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
    (tmp_path / "net.py").write_text(TORCH)
    train = load_splits().train
    np.savez(tmp_path / "train.npz", x=train.images, label=train.labels)
    profile = write_profile(tmp_path, "onnxruntime")
    model = f"{tmp_path / 'net.py'}:make"
    whole = build(capsys, model, profile, tmp_path / "whole", folders)
    assert whole["name"] == "make"
    assert whole["metric"] == "top1"
    assert "the batch may vary" in whole["notes"]
    manifest = proven(tmp_path / "whole")
    assert any(v.info.precision.startswith("int8") for v in manifest.variants)
    assert manifest.variants[0].info.inputs[0].shape == (-1, 1, 8, 8)
    reference = candidate(whole, "onnxruntime-fp32")
    assert reference["accuracy"]["value"] > 0.8

    pruned = build(
        capsys, model, profile, tmp_path / "pruned",
        {**folders, "--prune": "0.25", "--training": f"{tmp_path / 'net.py'}:train"},
        "--float-only",
    )  # fmt: skip
    proven(tmp_path / "pruned")
    assert any("parameters" in note for note in pruned["notes"]), pruned["notes"]
    smaller = candidate(pruned, "onnxruntime-fp32")
    assert smaller["size_bytes"] < 0.85 * reference["size_bytes"]
    assert smaller["accuracy"]["value"] > 0.8


@pytest.mark.thorough
def test_a_scikit_learn_pipeline_with_samples_from_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    (tmp_path / "pipe.py").write_text(SKLEARN)
    result = build(
        capsys, f"{tmp_path / 'pipe.py'}:make",
        write_profile(tmp_path, "onnxruntime", "openvino"), tmp_path / "package",
        {"--evaluation": f"{tmp_path / 'pipe.py'}:evaluation", "--name": "digit-pipeline"},
    )  # fmt: skip
    assert result["metric"] == "top1"
    assert result["samples"] == 400, "nothing takes ranges from samples, so all of them judge"
    assert not any("was split" in note for note in result["notes"])
    assert "openvino" in candidate(result, "openvino-fp16")["lost"]
    manifest = proven(tmp_path / "package")
    assert manifest.name == "digit-pipeline"
    assert [spec.name for spec in manifest.variants[0].info.outputs] == ["probabilities", "label"]
    assert candidate(result, "onnxruntime-fp32")["accuracy"]["value"] > 0.85


@pytest.mark.thorough
def test_a_float64_pipeline_becomes_variants_that_take_float64(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    text = SKLEARN + "\n\ndef wide():\n    return make(), 64, 'float64'\n"
    (tmp_path / "pipe.py").write_text(text)
    result = build(
        capsys, f"{tmp_path / 'pipe.py'}:wide",
        write_profile(tmp_path, "onnxruntime", "openvino"), tmp_path / "package",
        {"--evaluation": f"{tmp_path / 'pipe.py'}:evaluation"},
    )  # fmt: skip
    assert "the model takes float64" in result["notes"]
    for variant in proven(tmp_path / "package").variants:
        assert [spec.datatype for spec in variant.info.inputs] == ["FP64"], variant.name


def images(folder: Path, kind: str) -> dict[str, str]:
    """Write CIFAR-10 images as the MLPerf Tiny models take them."""
    options = {}
    for name, file, count in (("calibration", "calib512", 48), ("evaluation", "val1000", 96)):
        with np.load(trained(f"cifar10/{file}.npz")) as arrays:
            x, y = arrays["x"][:count], arrays["y"][:count]
        ready = x.astype(np.float32) if kind == "float" else (x.astype(np.int16) - 128)
        x = ready if kind == "float" else ready.astype(np.int8)
        options[f"--{name}"] = samples(folder / name, x=x, label=y)
    return options


@pytest.mark.thorough
def test_a_float_tflite_model_is_a_variant_and_a_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ai_edge_quantizer", reason="ai-edge-quantizer is not installed")
    options = images(tmp_path, "float")
    model = trained("mlperf_tiny/ic_resnet8_fp32.tflite")
    result = build(
        capsys, model, write_profile(tmp_path, "litert"), tmp_path / "package",
        {**options, "--min-retention": "0.95", "--keep": "litert-int8"},
    )  # fmt: skip
    given, small = candidate(result, "litert-given"), candidate(result, "litert-int8")
    assert given["accuracy"]["value"] > 0.7
    assert small["accuracy"]["retention"] > 0.9
    assert small["size_bytes"] < 0.4 * given["size_bytes"]
    manifest = proven(tmp_path / "package", min_retention=0.95)
    assert {"litert-given", "litert-int8"} <= names(manifest)
    assert (tmp_path / "package/litert-given/model.tflite").read_bytes() == model.read_bytes()
    assert {c["runtime"] for c in result["candidates"]} == {"litert"}


def test_an_int8_tflite_model_goes_in_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    options = images(tmp_path, "int8")
    result = build(
        capsys, trained("mlperf_tiny/ic_resnet8_int8.tflite"),
        write_profile(tmp_path, "litert", "openvino"), tmp_path / "package", options,
    )  # fmt: skip
    assert result["metric"] == "top1"
    assert not candidate(result, "openvino-fp16")["lost"]
    assert candidate(result, "litert-given")["accuracy"]["value"] > 0.7
    reasons = {i["candidate"]: i["reason"] for i in result["impossible"]}
    assert reasons["litert-int8"] == "the model is already quantized"
    manifest = proven(tmp_path / "package")
    assert [spec.datatype for spec in manifest.variants[0].info.inputs] == ["INT8"]


def test_a_stablehlo_artefact_answers_as_the_program_that_exported_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("iree.compiler", reason="IREE's compiler is not installed")
    pytest.importorskip("iree.runtime", reason="IREE's runtime is not installed")
    features = np.random.default_rng(3).standard_normal((40, 8)).astype(np.float32)
    result = build(
        capsys, STABLEHLO / "mlp.stablehlo", write_profile(tmp_path, "iree", "onnxruntime"),
        tmp_path / "package", {"--evaluation": samples(tmp_path / "data", features=features)},
        "--float-only",
    )  # fmt: skip
    assert result["metric"] == "agreement"
    assert {c["runtime"] for c in result["candidates"]} == {"iree"}
    (variant,) = proven(tmp_path / "package").variants
    assert [spec.name for spec in variant.info.outputs] == ["scores"]
    with np.load(STABLEHLO / "mlp.npz") as known:
        session = open_session(tmp_path / "package" / variant.directory, variant.info, Limits())
        for row, scores in zip(known["features"], known["scores"], strict=True):
            answers = session.infer({"features": row[np.newaxis]})
            np.testing.assert_allclose(answers["scores"][0], scores, atol=1e-5)
        session.close()


@pytest.mark.thorough
def test_external_data_go_into_the_package_and_top5_judges(
    work: Path, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(str(work / "digits.onnx"))
    onnx.save(
        model, str(tmp_path / "net.onnx"), save_as_external_data=True, location="net.weights",
        size_threshold=0,
    )  # fmt: skip
    assert (tmp_path / "net.weights").stat().st_size > 500_000
    result = build(
        capsys, tmp_path / "net.onnx", write_profile(tmp_path, "onnxruntime"),
        tmp_path / "package", {**folders, "--metric": "top5"},
    )  # fmt: skip
    assert result["metric"] == "top5"
    assert candidate(result, "onnxruntime-fp32")["accuracy"]["value"] > 0.98
    assert candidate(result, "onnxruntime-int8-reduced")["accuracy"]["retention"] > 0.98
    manifest = proven(tmp_path / "package")
    assert "onnxruntime-fp32" in names(manifest)
    copied = onnx.load(str(tmp_path / "package/onnxruntime-fp32/model.onnx"))
    assert not any(tensor.external_data for tensor in copied.graph.initializer)


def small_model(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **weights: Any
) -> None:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def test_a_model_without_a_batch_axis_is_judged_by_its_mean_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((5, 3)).astype(np.float32)
    small_model(
        tmp_path / "plain.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["q"]), helper.make_node("Tanh", ["q"], ["y"])],
        {"x": (4, 5)},
        {"y": (4, 3)},
        w=weight,
    )
    x = rng.standard_normal((64, 4, 5)).astype(np.float32)
    y = np.tanh(x @ weight) + 0.01 * rng.standard_normal((64, 4, 3)).astype(np.float32)
    result = build(
        capsys, tmp_path / "plain.onnx", write_profile(tmp_path, "onnxruntime"),
        tmp_path / "package",
        {"--evaluation": samples(tmp_path / "data", x=x, label=y.astype(np.float32)),
         "--metric": "mae", "--max-disagreement": "0.1"},
        "--float-only",
    )  # fmt: skip
    assert any("no common batch axis" in note for note in result["notes"])
    assert (
        "warning: --max-disagreement is not applied: mae reads an output that has no top answer"
    ) in result["notes"]
    found = candidate(result, "onnxruntime-fp32")["accuracy"]
    assert found["metric"] == "mae"
    assert 0.005 < found["value"] < 0.015
    assert found["retention"] == pytest.approx(1.0, abs=1e-4)
    manifest = proven(tmp_path / "package")
    assert [spec.shape for spec in manifest.variants[0].info.inputs] == [(4, 5)]


def test_a_state_whose_batch_is_not_its_first_axis_keeps_its_axes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(2)
    hidden, features = 4, 3
    small_model(
        tmp_path / "state.onnx",
        [
            helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
            helper.make_node(
                "LSTM", ["steps", "w", "r", "", "", "h"], ["", "hn"],
                hidden_size=hidden, direction="bidirectional",
            ),
        ],
        {"x": ("n", 5, features), "h": (2, "n", hidden)},
        {"hn": (2, "n", hidden)},
        w=rng.standard_normal((2, 4 * hidden, features)).astype(np.float32),
        r=rng.standard_normal((2, 4 * hidden, hidden)).astype(np.float32),
    )  # fmt: skip
    data = samples(
        tmp_path / "data",
        x=rng.standard_normal((32, 1, 5, features)).astype(np.float32),
        h=rng.standard_normal((32, 2, 1, hidden)).astype(np.float32),
    )
    profile = write_profile(tmp_path, "onnxruntime", "openvino", "tvm")
    result = build(
        capsys, tmp_path / "state.onnx", profile, tmp_path / "package",
        {"--evaluation": data}, "--float-only",
    )  # fmt: skip
    assert any("no common batch axis" in note for note in result["notes"])
    reasons = [i["reason"] for i in result["impossible"] if i["candidate"] == "tvm-fp32"]
    assert any("has a size besides the batch" in reason for reason in reasons)
    manifest = proven(tmp_path / "package")
    assert "interface" not in manifest.metadata
    assert {v.info.runtime for v in manifest.variants} == {"onnxruntime", "openvino"}
    for variant in manifest.variants:
        specs = (*variant.info.inputs, *variant.info.outputs)
        shapes = {spec.name: spec.shape for spec in specs}
        assert shapes == {"x": (-1, 5, 3), "h": (2, -1, 4), "hn": (2, -1, 4)}, variant.name


METRIC = '''
"""How good the two outputs are together, and samples for them."""

import numpy as np
from sklearn.metrics import mean_squared_error


def score(outputs, labels):
    assert set(outputs) == {"sum", "product"} and labels is None
    errors = [mean_squared_error(np.zeros_like(found), found) for found in outputs.values()]
    return 1.0 / (1.0 + sum(errors))


def data():
    rng = np.random.default_rng(5)
    for _ in range(20):
        yield {name: rng.standard_normal((2, 6)).astype(np.float32) for name in ("a", "b")}
'''


@pytest.mark.thorough
def test_two_inputs_and_outputs_are_judged_by_the_users_own_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(METRIC)
    small_model(
        tmp_path / "two.onnx",
        [helper.make_node("Add", ["a", "b"], ["sum"]),
         helper.make_node("Mul", ["a", "b"], ["product"])],
        {"a": ("n", 6), "b": ("n", 6)},
        {"sum": ("n", 6), "product": ("n", 6)},
    )  # fmt: skip
    result = build(
        capsys, tmp_path / "two.onnx", write_profile(tmp_path, "onnxruntime", "openvino"),
        tmp_path / "package",
        {"--evaluation": f"{tmp_path / 'own.py'}:data",
         "--metric": f"{tmp_path / 'own.py'}:score"},
        "--float-only",
    )  # fmt: skip
    assert result["metric"] == "own.py:score"
    manifest = proven(tmp_path / "package")
    info = manifest.variants[0].info
    assert [s.name for s in info.inputs] == ["a", "b"]
    assert [s.name for s in info.outputs] == ["sum", "product"]
    assert not candidate(result, "openvino-fp16")["lost"]
    golden = manifest.variants[0].info.golden
    assert golden is not None
    inputs, outputs = load_golden(tmp_path / "package" / asset_directory(golden.asset))
    np.testing.assert_allclose(outputs["sum"], inputs["a"] + inputs["b"], rtol=1e-6)
    for path in (tmp_path / "package").rglob("*"):
        assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), path


def served(rig: Rig, model: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Ask the endpoint as an application does; return the outputs in the shapes that it tells."""
    inputs = [
        {"name": n, "datatype": "FP32", "shape": t.shape, "data": t.reshape(-1).tolist()}
        for n, t in tensors.items()
    ]
    client = rig.client()
    client.request("POST", f"/v2/models/{model}/infer", body=json.dumps({"inputs": inputs}))
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    assert response.status == 200, answer
    return {
        part["name"]: np.array(part["data"], np.float32).reshape(part["shape"])
        for part in answer["outputs"]
    }


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "device")
    yield rig
    rig.stop()


@pytest.mark.thorough
def test_a_fixed_state_and_scalars_go_through_as_the_model_has_them(
    tmp_path: Path, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    small_model(
        tmp_path / "cell.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["h", "u"], ["b"]),
            helper.make_node("Mul", ["b", "gain"], ["c"]),
            helper.make_node("Add", ["a", "c"], ["d"]),
            helper.make_node("Tanh", ["d"], ["hn"]),
            helper.make_node("ReduceMean", ["hn"], ["level"], keepdims=0),
        ],
        {"x": (1, 6), "h": (2, 1, 8), "gain": ()},
        {"hn": (2, 1, 8), "level": ()},
        w=rng.standard_normal((6, 8)).astype(np.float32),
        u=rng.standard_normal((8, 8)).astype(np.float32),
    )
    data = samples(
        tmp_path / "data",
        x=rng.standard_normal((64, 1, 6)).astype(np.float32),
        h=rng.standard_normal((64, 2, 1, 8)).astype(np.float32),
        gain=rng.random(64, np.float32),
    )
    made = ["onnxruntime-int8-reduced", "openvino-int8-reduced",
            "tvm-fp32-x86-64-v3", "iree-fp32-x86-64-v3"]  # fmt: skip
    profile = write_profile(tmp_path, "onnxruntime", "openvino", "tvm", "iree")
    result = build(
        capsys, tmp_path / "cell.onnx", profile, tmp_path / "package", {"--evaluation": data},
        *(word for name in made for word in ("--keep", name)), "--max-variants", "9",
    )  # fmt: skip
    manifest = proven(tmp_path / "package")
    assert set(made) <= {variant.name for variant in manifest.variants}, result["impossible"]
    for variant in manifest.variants:
        specs = (*variant.info.inputs, *variant.info.outputs)
        assert {spec.name: spec.shape for spec in specs} == {
            "x": (1, 6), "h": (2, 1, 8), "gain": (), "hn": (2, 1, 8), "level": (),
        }, variant.name  # fmt: skip
    asked = {"x": (1, 6), "h": (2, 1, 8), "gain": ()}
    tensors = {name: rng.random(shape).astype(np.float32) for name, shape in asked.items()}
    found: dict[str, Any] = {}
    for variant in manifest.variants:
        probed = rig.server.probe(tmp_path / "package", DIGEST, variant)
        assert probed.passed, (variant.name, probed.detail)
        rig.server.switch_to(tmp_path / "package", DIGEST, variant)
        found[variant.name] = served(rig, manifest.name, tensors)
    right = found["onnxruntime-fp32"]
    assert (right["hn"].shape, right["level"].shape) == ((2, 1, 8), ())
    for name, answers in found.items():
        # Weights of four bits, where the build keeps them, are sixteen times as coarse as of eight.
        atol = 0.5 if "int4" in name else 0.2
        for output, value in answers.items():
            np.testing.assert_allclose(value, right[output], atol=atol, err_msg=f"{name} {output}")


@pytest.mark.thorough
def test_a_state_that_only_comes_out_is_kept_beside_a_batch_of_any_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(4)
    small_model(
        tmp_path / "out.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("MatMul", ["x", "u"], ["flat"]),
            helper.make_node("Reshape", ["flat", "shape"], ["wide"]),
            helper.make_node("Transpose", ["wide"], ["hn"], perm=[1, 0, 2]),
        ],
        {"x": ("n", 6)},
        {"y": ("n", 3), "hn": (2, "n", 4)},
        w=rng.standard_normal((6, 3)).astype(np.float32),
        u=rng.standard_normal((6, 8)).astype(np.float32),
        shape=np.array([-1, 2, 4]),
    )
    data = samples(tmp_path / "data", x=rng.standard_normal((64, 6)).astype(np.float32))
    profile = write_profile(tmp_path, "onnxruntime", "openvino")
    build(
        capsys, tmp_path / "out.onnx", profile, tmp_path / "package", {"--evaluation": data},
    )  # fmt: skip
    manifest = proven(tmp_path / "package")
    declared = manifest.variants[0].info.golden
    assert declared is not None
    golden = tmp_path / "package" / asset_directory(declared.asset)
    inputs, outputs = load_golden(golden)
    assert (inputs["x"].shape[1:], outputs["hn"].shape[1:]) == ((6,), (2, 1, 4))
    for variant in manifest.variants:
        assert [spec.shape for spec in variant.info.outputs] == [(-1, 3), (2, -1, 4)], variant.name
