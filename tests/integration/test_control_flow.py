"""Builds of models with If, Loop and Scan: what is converted within bodies, proven, and answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from packager.plan.recipes import CONTROL_FLOW
from packager.runtimes.common.onnx_files import session_of
from packager.runtimes.onnxruntime import models
from packager.sources.onnx_graph import all_graphs
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests import flow_models
from tests.integration.builds import QUICK, built, candidate, names, proven, write_profile

ENTERED = (
    "onnxruntime-fp16",
    "onnxruntime-int8-dynamic-reduced",
    "onnxruntime-int4",
    "openvino-fp16",
)
DYNAMIC: dict[str, Any] = {"weights": "int8", "reduce_range": False, "operators": ["MatMul"]}
INT4: dict[str, Any] = {"block_size": 32, "symmetric": True, "accuracy_level": 4}
MODELS = pytest.mark.parametrize(
    "write",
    [
        pytest.param(flow_models.branches, id="if", marks=pytest.mark.thorough),
        pytest.param(flow_models.loop, id="loop", marks=pytest.mark.thorough),
        pytest.param(flow_models.scan, id="scan"),
        pytest.param(flow_models.loop_of_floats, id="if in loop", marks=pytest.mark.thorough),
    ],
)


def command(folder: Path, model: Path, *more: str, runtimes: tuple[str, ...]) -> list[str]:
    """Return the arguments of a build, with samples that are drawn."""
    arrays: dict[str, Any] = {**flow_models.samples(model, 160)}
    np.savez(folder / "evaluation.npz", **arrays)
    return [
        "build", str(model), "-p", str(write_profile(folder, *runtimes)),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "-o", str(folder / "package"), "--metric", "mae", "--min-retention", "0.8", *QUICK, *more,
    ]  # fmt: skip


def inner(path: Path) -> tuple[set[str], set[int]]:
    """Return the operators within bodies of a model, and the types of the weights there."""
    _, *within = all_graphs(onnx.load(str(path)).graph)
    return (
        {node.op_type for graph in within for node in graph.node},
        {tensor.data_type for graph in within for tensor in graph.initializer},
    )


@pytest.mark.few(2)
@MODELS
def test_variants_of_a_model_with_bodies_pass_the_gates_and_the_golden_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path]
) -> None:
    model = write(tmp_path / "model.onnx")
    keep = [argument for name in ENTERED for argument in ("--keep", name)]
    result = built(capsys, command(tmp_path, model, *keep, runtimes=("onnxruntime", "openvino")))
    assert names(proven(tmp_path / "package", min_retention=0.8)) >= {"onnxruntime-fp32", *ENTERED}
    for name in ("onnxruntime-fp16", "openvino-fp16"):
        assert candidate(result, name)["accuracy"]["retention"] > 0.999


def test_both_branches_of_a_packaged_if_answer_as_the_model_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = flow_models.branches(tmp_path / "model.onnx")
    keep = [argument for name in ENTERED for argument in ("--keep", name)]
    built(capsys, command(tmp_path, model, *keep, runtimes=("onnxruntime", "openvino")))
    manifest = proven(tmp_path / "package", min_retention=0.8)
    ideal = session_of(model)
    x = np.random.default_rng(5).normal(0, 1, (1, flow_models.FEATURES)).astype(np.float32)
    for rate in flow_models.RATES:
        feeds: dict[str, Any] = {"x": x, "sr": np.array(rate, np.int64)}
        (wanted,) = ideal.run(None, feeds)
        for variant in manifest.variants:
            session = open_session(tmp_path / "package" / variant.directory, variant.info, Limits())
            error = np.abs(session.infer(feeds)["y"] - wanted).mean() / np.abs(wanted).mean()
            session.close()
            assert error < 0.25, (variant.name, rate)


def test_the_plan_says_in_one_line_why_a_variant_of_a_model_with_bodies_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtimes = ("onnxruntime", "openvino", "tvm")
    reasons = {}
    for write in (flow_models.branches, flow_models.scan):
        arguments = command(
            tmp_path, write(tmp_path / "model.onnx"), "--dry-run", runtimes=runtimes
        )
        plan = built(capsys, arguments)
        found = {one["candidate"]: one["reason"] for one in plan["impossible"]}
        reasons[write.__name__] = found
    assert "on one thread" in reasons["branches"]["openvino-int8-reduced"]
    assert "onnxruntime-int8-reduced" not in reasons["branches"]  # its outer products are worth it
    assert "compile If" in reasons["branches"]["tvm-fp32"]
    assert "compile Scan" in reasons["scan"]["tvm-fp32"]
    for name in ("onnxruntime-int8-reduced", "openvino-int8-reduced", "openvino-int4"):
        assert "does not quantize within If, Loop and Scan" in reasons["scan"][name]


@MODELS
def test_weights_within_bodies_are_really_converted(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    model, made = write(tmp_path / "model.onnx"), tmp_path / "made.onnx"
    models.to_fp16(model, {}, made)
    assert TensorProto.FLOAT not in inner(made)[1]
    graph = onnx.load(str(made)).graph
    assert {v.type.tensor_type.elem_type for v in graph.output} == {TensorProto.FLOAT}
    models.quantize_dynamic(model, DYNAMIC, made)
    assert "MatMulInteger" in inner(made)[0]
    assert "MatMul" not in inner(made)[0]
    models.quantize_weights_int4(model, INT4, made)
    assert "MatMulNBits" in inner(made)[0]
    assert not {"MatMul", "Gemm"} & inner(made)[0]


@MODELS
def test_equal_models_with_bodies_give_equal_bytes(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    model = write(tmp_path / "model.onnx")
    makes: tuple[Callable[[Path], None], ...] = (
        lambda target: models.to_fp16(model, {}, target),
        lambda target: models.quantize_dynamic(model, DYNAMIC, target),
        lambda target: models.quantize_weights_int4(model, INT4, target),
    )
    for index, make in enumerate(makes):
        first, second = (tmp_path / f"{index}-{part}.onnx" for part in "ab")
        make(first)
        make(second)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.thorough
def test_a_build_warns_of_a_branch_that_no_sample_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = flow_models.branches(tmp_path / "model.onnx")
    arguments = command(tmp_path, model, "--force", runtimes=("onnxruntime",))
    said = [n for n in built(capsys, arguments)["notes"] if "no evaluation sample takes" in n]
    assert said == []
    arrays: dict[str, Any] = {**flow_models.samples(model, 160)}
    arrays["sr"] = np.full_like(arrays["sr"], flow_models.RATES[1])
    np.savez(tmp_path / "evaluation.npz", **arrays)
    (line,) = (n for n in built(capsys, arguments)["notes"] if "no evaluation sample takes" in n)
    assert "the else_branch of the node If" in line


def test_the_test_models_have_each_operator_of_control_flow(tmp_path: Path) -> None:
    found: set[str] = set()
    for write in (flow_models.branches, flow_models.loop, flow_models.scan):
        graph = onnx.load(str(write(tmp_path / "model.onnx"))).graph
        found |= {node.op_type for node in graph.node}
    assert set(CONTROL_FLOW) <= found
