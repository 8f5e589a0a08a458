"""A model whose weights stay in a file beside it: its whole way, and what is refused."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from agent.app.control import SOCKET_FILE
from packager.package.directory import seal
from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.integration.builds import (
    QUICK,
    built,
    contents,
    names,
    proven,
    refused,
    write_profile,
)
from tests.simulators.agent_process import At, Device
from tests.simulators.archives import file_of
from tests.simulators.packages import RELEASE_KEY, SignedPackage, desired
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.rig import DIGEST, Rig
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes

WIDTH = 64
WEIGHTS = "model.onnx.data"
MADE = tuple(f"onnxruntime-{p}" for p in ("fp32", "fp16", "int8-dynamic-reduced", "int4"))
OPENVINO = "openvino-fp16"


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


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    write_model(folder)
    tokens = np.random.default_rng(2).integers(0, 50, (64, 8))
    np.savez(folder / "samples.npz", tokens=tokens)
    write_profile(folder, "onnxruntime", "openvino", "litert", "tvm", "iree")
    return folder


def command(work: Path, output: Path, *more: str, model: Path | None = None) -> list[str]:
    keep = [word for name in MADE for word in ("--keep", name)]
    return [
        "build", str(model or work / "net.onnx"), "-p", str(work / "box.toml"), "--evaluation",
        str(work / "samples.npz"), "--cache", str(work / "cache"), "-o", str(output),
        "--apart-over", "1024", "--metric", "cosine", "--min-retention", "0.9", *keep, *QUICK,
        *more,
    ]  # fmt: skip


@pytest.fixture
def package(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A package; all builds but the first take it from the cache."""
    result = built(capsys, command(work, tmp_path / "package"))
    assert any(WEIGHTS in note for note in result["notes"])
    return tmp_path / "package"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "device")
    yield rig
    rig.stop()


def asked(client: http.client.HTTPConnection, tokens: Any) -> Any:
    sent = {"name": "tokens", "datatype": "INT64", "shape": tokens.shape, "data": tokens.tolist()}
    client.request("POST", "/v2/models/net/infer", body=json.dumps({"inputs": [sent]}))
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    assert response.status == 200, answer
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.mark.thorough
def test_weights_stay_in_a_file_of_their_own_from_the_model_to_the_answer(
    work: Path, package: Path, rig: Rig
) -> None:
    manifest = proven(package, min_retention=0.9)
    assert names(manifest) == {*MADE, OPENVINO}
    digest = hashlib.sha256((work / "net.bin").read_bytes()).hexdigest()
    assert manifest.metadata["sources_sha256"]["source-data-1"] == digest
    tokens = np.random.default_rng(5).integers(0, 50, (1, 8))
    (right,) = ReferenceEvaluator(str(work / "net.onnx")).run(None, {"tokens": tokens})
    sizes = {}
    for variant in manifest.variants:
        folder = package / variant.directory
        probed = rig.server.probe(package, DIGEST, variant)
        assert probed.passed, (variant.name, probed.detail)
        rig.server.switch_to(package, DIGEST, variant)
        far = {"onnxruntime-fp32": 1e-4, "onnxruntime-fp16": 1e-2, OPENVINO: 1e-2}
        np.testing.assert_allclose(
            asked(rig.client(), tokens),
            right,
            atol=far.get(variant.name, 0.5),
            err_msg=variant.name,
        )
        if variant.name == OPENVINO:
            continue
        assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", WEIGHTS]
        assert set(variant.info.files_sha256 or ()) == {"model.onnx", WEIGHTS}
        graph = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph
        assert all(t.external_data or len(t.raw_data) < 1024 for t in graph.initializer)
        sizes[variant.name] = sum(int(e.value) for t in graph.initializer for e in t.external_data
                                  if e.key == "length")  # fmt: skip
    fp32, fp16, int8, int4 = (sizes[name] for name in MADE)
    table = 4 * 50 * WIDTH  # the embedding stays in float where only products are quantized
    assert fp16 == fp32 // 2
    assert int8 < fp32 // 4 + table
    assert int4 < fp32 // 6 + table


def test_a_device_installs_both_files_and_serves_from_them(
    work: Path, package: Path, tmp_path: Path
) -> None:
    index = seal(package, RELEASE_KEY)
    made = SignedPackage(
        files={entry.path: (package / entry.path).read_bytes() for entry in index.files},
        envelope=(package / ENVELOPE_FILE).read_bytes(),
        index=index,
    )
    (tmp_path / "device").mkdir()
    device = Device(tmp_path / "device", At(1))
    device.set_runtimes("onnxruntime")
    (tmp_path / "net.tar").write_bytes(file_of(made, desired=desired(1, made)[1]))
    device.start()
    try:
        until((device.config.state_dir / SOCKET_FILE).exists, "the agent")
        done = device.command("install", str(tmp_path / "net.tar"))
        assert done.returncode == 0, done.stderr
        until(lambda: device.ask("status")["variant"] == "onnxruntime-fp32", "the variant")
        address = device.ask("status")["endpoint"]
        tokens = np.random.default_rng(6).integers(0, 50, (1, 8))
        (right,) = ReferenceEvaluator(str(work / "net.onnx")).run(None, {"tokens": tokens})
        client = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        np.testing.assert_allclose(asked(client, tokens), right, atol=1e-4)
    finally:
        device.end(signal.SIGKILL)


def test_layers_are_profiled_with_the_weights_of_the_graph_that_ran(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = built(capsys, ["package", "layers", str(package), "--variant", "onnxruntime-fp32"])
    assert "MatMul" in {layer["operator"] for layer in found["layers"]}
    assert found["weights_bytes"] > 4 * 10 * WIDTH * WIDTH


def test_every_candidate_that_would_hold_all_weights_is_left_out_with_one_reason(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = built(capsys, [*command(work, tmp_path / "package"), "--dry-run"])
    assert {found["name"] for found in plan["candidates"]} == {*MADE, OPENVINO}
    reasons = {found["candidate"]: found["reason"] for found in plan["impossible"]}
    for name in ("openvino-int4", "onnxruntime-int8-reduced", "litert-fp32", "tvm-fp32"):
        assert "stay in a file of their own (--apart-over)" in reasons[name], reasons


def test_a_smaller_model_is_built_as_before(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ("--apart-over", str(10**6))
    plan = built(capsys, [*command(work, tmp_path / "package"), *limit, "--dry-run"])
    found = {found["name"]: found["files"] for found in plan["candidates"]}
    assert found["onnxruntime-fp32"] == ["model.onnx"]
    assert "tvm-fp32-x86-64-v3" in found


def test_the_same_model_with_its_weights_inside_gives_the_same_files(
    work: Path, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(onnx.load(str(work / "net.onnx")), str(tmp_path / "net.onnx"))
    other = tmp_path / "other"
    built(capsys, command(work, other, model=tmp_path / "net.onnx"))
    for name in MADE:
        assert contents(other / name) == contents(package / name), name


def test_a_package_whose_weights_are_damaged_or_missing_is_refused_in_one_line(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = package / "onnxruntime-int4" / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert "onnxruntime-int4/model.onnx.data" in refused(capsys, ["package", "show", str(package)])
    weights.unlink()
    assert "onnxruntime-int4/model.onnx.data" in refused(capsys, ["package", "show", str(package)])
    manifest = manifest_from_bytes((package / MANIFEST_FILE).read_bytes())
    variant = next(v for v in manifest.variants if v.name == "onnxruntime-int4")
    with pytest.raises(LoadError, match=r"cannot load 'model\.onnx'") as caught:
        open_session(weights.parent, variant.info, Limits())
    assert "\n" not in str(caught.value)


def missing(folder: Path) -> str:
    (folder / "net.bin").unlink()
    return "the model's data file 'net.bin', at least"


def truncated(folder: Path) -> str:
    content = (folder / "net.bin").read_bytes()
    (folder / "net.bin").write_bytes(content[:-100])
    return "copy or download the file again; it is truncated"


def without_a_number(folder: Path) -> str:
    weights = np.fromfile(folder / "net.bin", np.float32)
    weights[100] = np.nan
    weights.tofile(folder / "net.bin")
    return "weight 'table' holds NaN"


def outside(folder: Path) -> str:
    (folder / "net.bin").rename(folder.parent / "net.bin")
    return relocated(folder, "../net.bin")


def absolute(folder: Path) -> str:
    return relocated(folder, str(folder / "net.bin"))


def relocated(folder: Path, place: str) -> str:
    model = onnx.load(str(folder / "net.onnx"), load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return "the model's external data are outside its folder"


def linked(folder: Path) -> str:
    (folder / "net.bin").rename(folder / "elsewhere.bin")
    (folder / "net.bin").symlink_to("elsewhere.bin")
    return "the model's data file 'net.bin' is a link"


@pytest.mark.parametrize(
    "harm", [missing, truncated, without_a_number, outside, absolute, linked],
    ids=lambda harm: harm.__name__,
)  # fmt: skip
def test_external_data_at_fault_are_refused_in_one_line(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model = write_model(folder)
    expected = harm(folder)
    fresh = ("--cache", str(tmp_path / "cache"))
    assert expected in refused(capsys, [*command(work, tmp_path / "p", model=model), *fresh])
    assert not (tmp_path / "p").exists()


@pytest.mark.thorough
def test_a_model_of_2_gib_in_one_piece_is_refused_in_one_line(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "huge.onnx"
    with model.open("wb") as stream:
        stream.truncate(2**31)
    text = refused(capsys, command(work, tmp_path / "package", model=model))
    assert "the model is over 2147483647 bytes" in text
    assert "export it with external data" in text
