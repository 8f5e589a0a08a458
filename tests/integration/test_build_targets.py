"""Whole builds for processors: compiled, tried under emulation, tuned once and for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.backends import toolchains
from packager.backends.targets import named
from packager.bundle import open_package
from tests.integration.builds import build_command, built, candidate, digits, write_profile

WIDTH = 37
"""A prime, which the plain schedule does not cut into vectors: any schedule is much faster."""


def need(target: str) -> None:
    missing = toolchains.missing(named(target)) or toolchains.missing_to_try(named(target))
    if missing:
        pytest.skip(f"{missing} is not installed")


def test_a_variant_for_a_riscv_board_is_proven_under_emulation_and_has_no_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("riscv64")
    work = digits(tmp_path)
    board = write_profile(
        work, "tvm", name="board", architecture="riscv64", features=("c", "d", "f")
    )
    result = built(
        capsys, build_command(work, board, tmp_path / "p", "--float-only", "--emulation-s", "30")
    )
    compiled = candidate(result, "tvm-fp32-riscv64")
    assert compiled["performance"] is None
    assert compiled["accuracy"]["agreement"] == 1.0
    assert compiled["accuracy"]["worst_error"] < 1e-4
    assert 8 <= compiled["accuracy"]["samples"] < result["samples"]
    manifest, _ = open_package(tmp_path / "p")
    (variant,) = manifest.variants
    assert variant.info.requirements.architectures == ("riscv64",)
    assert variant.info.golden is not None
    assert variant.info.golden.samples >= 8
    library = (tmp_path / "p" / variant.directory / "model.so").read_bytes()
    assert library[18:20] == b"\xf3\x00", "the ELF header names RISC-V"


def test_a_missing_cross_compiler_removes_the_variant_and_names_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = digits(tmp_path)
    box = write_profile(
        work, "onnxruntime", "tvm", name="board", architecture="riscv64", features=("c",)
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    result = built(capsys, build_command(work, box, tmp_path / "p", "--float-only"))
    reason = next(i["reason"] for i in result["impossible"] if i["candidate"] == "tvm-fp32")
    assert reason.endswith("apt-get install gcc-riscv64-linux-gnu")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A convolution that a search speeds up, with samples."""
    random = np.random.default_rng(0)
    shape = [1, 8, WIDTH, WIDTH]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["input", "w"], ["y"], pads=[1, 1, 1, 1])],
        "odd",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, WIDTH, WIDTH])],
        [numpy_helper.from_array(random.random((16, 8, 3, 3)).astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "digits.onnx"))
    for name in ("calibration", "evaluation"):
        samples = random.random((32, *shape[1:])).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", input=samples)
    return tmp_path


def test_a_later_build_takes_the_schedule_that_an_earlier_one_found(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("x86-64-v3")
    if not toolchains.natively_runnable(named("x86-64-v3")):
        pytest.skip("this processor cannot run what is tuned")
    box = write_profile(odd, "tvm")

    def files(output: str, *more: str) -> str:
        """Build, and return the digest of the compiled model."""
        arguments = build_command(
            odd, box, odd / output, "--float-only", *more, cache=odd / f"cache-{output}"
        )
        result = built(capsys, arguments)
        tried = [note for note in result["notes"] if note.startswith("tune-tvm-fp32")]
        assert bool(tried) == ("--tune" in more)
        found: str = candidate(result, "tvm-fp32-x86-64-v3")["files_sha256"]
        return found

    database = ("--tuning-database", str(odd / "known"))
    untuned = files("untuned")
    tuned = files("tuned", *database, "--tune", "6")
    later = files("later", *database)
    assert tuned != untuned
    assert later == tuned
