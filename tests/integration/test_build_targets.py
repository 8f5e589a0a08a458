"""Whole builds for processors: compiled, tried under emulation, tuned once and for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packager.package.directory import open_package
from packager.plan.targets import named
from packager.runtimes.tvm.spec import missing_to_build
from packager.tools import toolchains
from tests.integration.builds import (
    QUICK,
    build_command,
    built,
    candidate,
    digits,
    write_profile,
)
from tests.models import ODD_SHAPE, odd_convolution, uniform


def need(target: str) -> None:
    missing = missing_to_build(named(target)) or toolchains.missing_to_try(named(target))
    if missing:
        pytest.skip(f"{missing} is not installed")


@pytest.mark.thorough
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
    # A quick machine gets through all of them in the time given.
    assert 8 <= compiled["accuracy"]["samples"] <= result["samples"]
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
    odd_convolution(tmp_path / "digits.onnx")
    for seed, name in enumerate(("calibration", "evaluation")):
        np.savez(tmp_path / f"{name}.npz", input=uniform(32, *ODD_SHAPE[1:], seed=seed))
    return tmp_path


@pytest.mark.thorough  # test_tvm_tuning.py shows it with a smaller model
def test_a_later_build_takes_the_schedule_that_an_earlier_one_found(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("x86-64-v3")
    if not toolchains.natively_runnable(named("x86-64-v3")):
        pytest.skip("this processor cannot run what is tuned")
    box = write_profile(odd, "tvm")

    def files(output: str, *more: str, cache: str = "cache") -> str:
        """Build, and return the digest of the compiled model."""
        arguments = build_command(
            odd, box, odd / output, "--float-only", *more, *QUICK, cache=odd / cache
        )
        result = built(capsys, arguments)
        tried = [note for note in result["notes"] if note.startswith("tune-tvm-fp32")]
        assert bool(tried) == ("--tune" in more)
        found: str = candidate(result, "tvm-fp32-x86-64-v3")["files_sha256"]
        return found

    database = ("--tuning-database", str(odd / "known"))
    untuned = files("untuned")
    tuned = files("tuned", *database, "--tune", "6")
    later = files("later", *database, cache="another")
    assert tuned != untuned
    assert later == tuned
