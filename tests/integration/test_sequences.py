"""Builds of models whose state is fed back: sequences are played, and the drift is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from controller.cli import main
from packager.errors import DataError
from packager.judge.drift import drift
from packager.package.directory import open_package
from packager.samples.sequences import Form, play
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.integration.builds import QUICK, write_profile
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

HIDDEN, FEATURES, STEPS, SEQUENCES = 16, 6, 200, 8


def gru(path: Path, *, leak: float = 1.0, memory: float = 0.0) -> Path:
    """Write one step of a GRU with the outputs y and hn; the state has the shape [batch, H].

    Args:
        path: The file.
        leak: What the kept part of the state is multiplied by.
        memory: Is added where the update gate is computed; a large number keeps the state.
    """
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.normal(0, 0.5, (FEATURES, 3 * HIDDEN)),
        "r": rng.normal(0, 0.4, (HIDDEN, 3 * HIDDEN)),
        "b": rng.normal(0, 0.1, (3 * HIDDEN,)) + memory * (np.arange(3 * HIDDEN) < HIDDEN),
        "out": rng.normal(0, 0.5, (HIDDEN, 4)),
        "one": np.ones(1),
        "leak": np.array([leak]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["xb"]),
        helper.make_node("MatMul", ["h", "r"], ["hr"]),
        helper.make_node("Split", ["xb"], ["xz", "xr", "xn"], axis=1, num_outputs=3),
        helper.make_node("Split", ["hr"], ["hz", "hq", "hc"], axis=1, num_outputs=3),
        helper.make_node("Add", ["xz", "hz"], ["az"]),
        helper.make_node("Sigmoid", ["az"], ["z"]),
        helper.make_node("Add", ["xr", "hq"], ["ar"]),
        helper.make_node("Sigmoid", ["ar"], ["q"]),
        helper.make_node("Mul", ["q", "hc"], ["qc"]),
        helper.make_node("Add", ["xn", "qc"], ["an"]),
        helper.make_node("Tanh", ["an"], ["n"]),
        helper.make_node("Sub", ["one", "z"], ["rest"]),
        helper.make_node("Mul", ["rest", "n"], ["new"]),
        helper.make_node("Mul", ["z", "h"], ["old"]),
        helper.make_node("Mul", ["old", "leak"], ["kept"]),
        helper.make_node("Add", ["new", "kept"], ["hn"]),
        helper.make_node("MatMul", ["hn", "out"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gru",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES]),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, ["batch", HIDDEN]),
        ],
        [
            helper.make_tensor_value_info("hn", TensorProto.FLOAT, ["batch", HIDDEN]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
        ],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def command(folder: Path, *more: str) -> list[str]:
    """Return the arguments of a build of the GRU, with sequences to judge it."""
    model = gru(folder / "gru.onnx")
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (SEQUENCES, STEPS, FEATURES)).astype(np.float32)
    np.savez(folder / "evaluation.npz", x=x)
    return [
        "build", str(model), "-p", str(write_profile(folder, "onnxruntime")),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "-o", str(folder / "package"), *QUICK, *more,
    ]  # fmt: skip


def test_variants_of_a_gru_are_played_with_their_own_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--state", "h=hn", "--metric", "mae", "--min-retention", "0.9", "--max-variants", "20"]
    assert main([*command(tmp_path, *asked), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = {c["name"]: c["accuracy"] for c in report["candidates"] if c["accuracy"]}
    half, dynamic = (found[f"onnxruntime-{name}"] for name in ("fp16", "int8-dynamic-reduced"))
    assert (half["samples"], half["drift"]["sequences"], half["drift"]["steps"]) == (4, 4, STEPS)
    assert found["onnxruntime-fp32"]["drift"]["end"] == 0.0
    for part in ("start", "middle", "end", "worst"):
        assert 0.0 < half["drift"][part] < dynamic["drift"][part] < 0.1
    assert half["certainty"]["retention_low"] < half["retention"] < 1.0
    assert any(n.startswith("onnxruntime-fp16: drift over 4 sequences") for n in report["notes"])
    manifest = open_package(tmp_path / "package")[0]
    kept = {variant.name: variant.info for variant in manifest.variants}
    assert all(info.states == {"h": "hn"} and info.golden for info in kept.values())
    accuracy = kept["onnxruntime-fp16"].accuracy
    assert accuracy is not None
    assert accuracy.drift
    assert accuracy.drift.end == half["drift"]["end"]
    assert main(["package", "show", str(tmp_path / "package")]) == 0
    shown = capsys.readouterr().out
    assert "h=hn" in shown
    assert "relative error" in shown


def test_sequences_are_judged_by_further_metrics_with_labels_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    further = ["--metric", "y=cosine", "--metric", "y=mae,labels=last,min-retention=0.5"]
    arguments = command(tmp_path, "--state", "h=hn", "--metric", "mae", *further, "--float-only")
    with np.load(tmp_path / "evaluation.npz") as arrays:
        x = arrays["x"]
    last = np.zeros((SEQUENCES, STEPS, 4), np.float32)
    np.savez(tmp_path / "evaluation.npz", x=x, last=last)
    assert main([*arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    for accuracy in (c["accuracy"] for c in report["candidates"] if c["accuracy"]):
        cosine, mae = accuracy["further"]
        assert cosine["value"] == pytest.approx(1.0, abs=1e-4)
        assert (mae["labels"], mae["samples"]) == ("last", accuracy["samples"])
        assert mae["value"] == pytest.approx(mae["reference"], rel=1e-2)
        assert accuracy["drift"]["sequences"] == SEQUENCES


def test_a_state_of_two_layers_and_a_number_a_step_are_played_by_several_runtimes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["h", "u"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Tanh", ["c"], ["hn"]),
        helper.make_node("ReduceMean", ["hn"], ["level"], keepdims=0),
    ]
    values = {"x": [1, FEATURES], "h": [2, 1, HIDDEN], "hn": [2, 1, HIDDEN], "level": []}
    x, h, hn, level = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in values.items()
    )
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.3, (size, HIDDEN)).astype(np.float32), name)
        for name, size in (("w", FEATURES), ("u", HIDDEN))
    ]
    graph = helper.make_graph(nodes, "cell", [x, h], [hn, level], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "cell.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(0, 1, (8, 50, 1, FEATURES)).astype(np.float32))
    arguments = [
        "build", str(tmp_path / "cell.onnx"), "-p",
        str(write_profile(tmp_path, "onnxruntime", "openvino", "tvm")), "--state", "h=hn",
        "--evaluation", str(tmp_path / "data.npz"), "--cache", str(tmp_path / "cache"),
        "-o", str(tmp_path / "package"), "--float-only", *QUICK,
    ]  # fmt: skip
    assert main([*arguments, "--json"]) == 0
    capsys.readouterr()
    manifest = open_package(tmp_path / "package")[0]
    assert {v.info.runtime for v in manifest.variants} == {"onnxruntime", "openvino", "tvm"}
    for variant in manifest.variants:
        accuracy = variant.info.accuracy
        assert accuracy is not None
        assert accuracy.drift
        assert (accuracy.metric, accuracy.drift.sequences, accuracy.samples) == ("cosine", 8, 8)
        assert accuracy.drift.worst < 0.01, variant.name


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        (["h"], "is no pair"),
        (["g=hn"], "no input 'g'"),
        (["h=z"], "no output 'z'"),
        (["h=y"], "the input is FP32 [-1, 16], but the output is FP32 [-1, 4]"),
        (["h=hn", "h=y"], "for the second time"),
    ],
)
def test_a_pair_that_cannot_be_fed_back_is_refused_at_plan_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], states: list[str], fault: str
) -> None:
    more = [word for state in states for word in ("--state", state)]
    assert main([*command(tmp_path, "--dry-run", *more)]) == 2
    assert fault in capsys.readouterr().err


def played(model: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a GRU answers to sequences with its own states."""
    info = VariantInfo(
        runtime="onnxruntime",
        precision="fp32",
        model_file=model.name,
        size_bytes=0,
        inputs=(
            TensorSpec(name="x", shape=(-1, FEATURES), datatype="FP32"),
            TensorSpec(name="h", shape=(-1, HIDDEN), datatype="FP32"),
        ),
        outputs=(
            TensorSpec(name="hn", shape=(-1, HIDDEN), datatype="FP32"),
            TensorSpec(name="y", shape=(-1, 4), datatype="FP32"),
        ),
    )
    x = np.random.default_rng(4).normal(0, 1, (SEQUENCES * STEPS, FEATURES)).astype(np.float32)
    first = {"h": np.zeros((SEQUENCES, HIDDEN), np.float32)}
    form = Form(sequences=SEQUENCES, steps=STEPS)
    session = open_session(model.parent, info, Limits(threads=1))
    rows = [r for _, r in play(session, {"x": x}, first, {"h": "hn"}, form)]
    session.close()
    return {n: form.folded(np.concatenate([row[n] for row in rows])) for n in ("hn", "y")}


def test_a_variant_whose_error_grows_with_the_steps_shows_it(tmp_path: Path) -> None:
    ideal = played(gru(tmp_path / "one.onnx", memory=5.0))
    steady = drift(ideal, ideal)
    moving = drift(played(gru(tmp_path / "two.onnx", memory=5.0, leak=1.002)), ideal)
    assert (steady.start, steady.end, steady.worst) == (0.0, 0.0, 0.0)
    assert moving.start * 2 < moving.middle < moving.end <= moving.worst
    assert moving.worst_step > STEPS * 0.9


def test_a_state_that_is_not_finite_is_refused_with_its_step(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="state 'hn' is not finite after step"):
        played(gru(tmp_path / "gru.onnx", memory=5.0, leak=3.0))
