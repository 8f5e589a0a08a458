"""A model whose weights stay in a file beside it: its whole way, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.integration.builds import (
    QUICK,
    built,
    names,
    proven,
    write_profile,
)
from tests.simulators.rig import DIGEST, Rig

WIDTH = 64
WEIGHTS = "model.onnx.data"


def write_model(folder: Path, name: str = "net") -> Path:
    """Write a model with external data: an embedding, and products of each kind."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    weights = {
        "table": normal(50, WIDTH), "query": normal(WIDTH, WIDTH), "key": normal(WIDTH, WIDTH),
        "wide": normal(WIDTH, 4 * WIDTH), "bias": normal(4 * WIDTH),
        "back": normal(4 * WIDTH, WIDTH), "head": normal(WIDTH, WIDTH),
        "shape": np.array([-1, WIDTH], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["embedded"], name="look"),
        helper.make_node("MatMul", ["embedded", "query"], ["q"], name="query"),
        helper.make_node("MatMul", ["embedded", "key"], ["k"], name="key"),
        helper.make_node("Tanh", ["k"], ["gate"]),
        helper.make_node("Mul", ["q", "gate"], ["mixed"]),
        helper.make_node("ReduceMean", ["mixed"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Reshape", ["mean", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "wide", "bias"], ["up"], name="up"),
        helper.make_node("Relu", ["up"], ["on"]),
        helper.make_node("MatMul", ["on", "back"], ["down"], name="down"),
        helper.make_node("Gemm", ["down", "head"], ["logits"], transB=1, name="head"),
    ]
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    path = folder / f"{name}.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location=f"{name}.bin",
              size_threshold=0)  # fmt: skip
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_model(tmp_path)
    tokens = np.random.default_rng(2).integers(0, 50, (64, 8))
    np.savez(tmp_path / "samples.npz", tokens=tokens)
    write_profile(tmp_path, "onnxruntime", "openvino", "litert", "tvm", "iree")
    return tmp_path


def command(work: Path, output: Path, *more: str) -> list[str]:
    return [
        "build", str(work / "net.onnx"), "-p", str(work / "box.toml"), "--evaluation",
        str(work / "samples.npz"), "--cache", str(work / "cache"), "-o", str(output),
        "--apart-over", "1024", *QUICK, *more,
    ]  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "device")
    yield rig
    rig.stop()


def served(rig: Rig, tokens: Any) -> Any:
    client = rig.client()
    sent = {"name": "tokens", "datatype": "INT64", "shape": tokens.shape, "data": tokens.tolist()}
    client.request("POST", "/v2/models/net/infer", body=json.dumps({"inputs": [sent]}))
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    assert response.status == 200, answer
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


MADE = tuple(f"onnxruntime-{p}" for p in ("fp32", "fp16", "int8-dynamic", "int4"))


def test_weights_stay_in_a_file_of_their_own_from_the_model_to_the_answer(
    work: Path, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = [word for name in MADE for word in ("--keep", name)]
    gates = ("--min-retention", "0.9", "--max-disagreement", "0.5", "--metric", "cosine")
    result = built(capsys, command(work, work / "package", *keep, *gates))
    manifest = proven(work / "package", min_retention=0.9)
    assert names(manifest) == set(MADE)
    sizes = {}
    for variant in manifest.variants:
        folder = work / "package" / variant.directory
        assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", WEIGHTS]
        assert set(variant.info.files_sha256 or ()) == {"model.onnx", WEIGHTS}
        graph = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph
        assert all(t.external_data or len(t.raw_data) < 1024 for t in graph.initializer)
        sizes[variant.name] = (folder / WEIGHTS).stat().st_size
    fp32 = sizes["onnxruntime-fp32"]
    assert sizes["onnxruntime-fp16"] < 0.6 * fp32
    assert sizes["onnxruntime-int8-dynamic"] < 0.5 * fp32
    assert sizes["onnxruntime-int4"] < sizes["onnxruntime-int8-dynamic"]
    assert any(WEIGHTS in note for note in result["notes"])

    tokens = np.random.default_rng(5).integers(0, 50, (1, 8))
    (right,) = ReferenceEvaluator(str(work / "net.onnx")).run(None, {"tokens": tokens})
    for variant in manifest.variants:
        probed = rig.server.probe(work / "package", DIGEST, variant)
        assert probed.passed, (variant.name, probed.detail)
        rig.server.switch_to(work / "package", DIGEST, variant)
        far = {"onnxruntime-fp32": 1e-4, "onnxruntime-fp16": 1e-2}.get(variant.name, 0.5)
        np.testing.assert_allclose(served(rig, tokens), right, atol=far, err_msg=variant.name)
