"""What a build promises beyond its variants: the same bytes anywhere, any executor, repairs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from controller.cli import main
from examples.digits.box import free_port
from packager.package.directory import open_package
from tests.integration.builds import (
    QUICK,
    build_command,
    built,
    candidate,
    contents,
    digits,
    refused,
    running_steps,
    write_profile,
)
from tests.models import ROOT, hard_digits
from tests.simulators.patience import PATIENCE_S, until
from wire.clock import SystemClock
from wire.codec import convert, to_json
from wire.package.accuracy import Accuracy

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("builds"))


@pytest.fixture(scope="module")
def profile(work: Path) -> Path:
    return write_profile(work, "onnxruntime")


class Plain(NamedTuple):
    """A build with which others are compared."""

    result: dict[str, Any]
    package: Path
    report: Path


@pytest.fixture(scope="module")
def plain(work: Path, profile: Path) -> Plain:
    package, report = work / "plain", work / "report.json"
    assert main(command(work, profile, package, "--report", str(report))) == 0
    return Plain(json.loads(report.read_bytes()), package, report)


def command(
    folder: Path, profile: Path, output: Path, *more: str, cache: Path | None = None
) -> list[str]:
    """Return the arguments of a build that measures as little as will do."""
    return build_command(folder, profile, output, *QUICK, *more, cache=cache)


@pytest.mark.thorough
def test_with_the_first_builds_figures_a_rebuild_elsewhere_gives_the_same_bytes(
    work: Path, profile: Path, plain: Plain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = digits_copy(work, tmp_path / "elsewhere")
    more = ("--measurements", str(plain.report))
    again = built(capsys, command(elsewhere, profile, tmp_path / "there", *more))
    assert "done" in {step["state"] for step in again["steps"]}
    assert contents(plain.package) == contents(tmp_path / "there")
    assert again["digest"] == plain.result["digest"]


def test_a_package_carries_how_its_evaluation_is_distributed(plain: Plain) -> None:
    manifest, _ = open_package(plain.package)
    for variant in manifest.variants:
        accuracy, found = variant.info.accuracy, variant.info.distributions
        assert accuracy is not None
        assert found
        assert [(each.of, each.measure) for each in found] == [
            ("output", "class"),
            ("output", "margin"),
            ("input", "mean"),
            ("input", "spread"),
        ]
        for each in found:
            assert sum(each.counts) == accuracy.samples
            assert len(to_json(each)) < 1024
        assert len(found[0].classes) == 10


def digits_copy(work: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("digits.onnx", "calibration.npz", "evaluation.npz"):
        (target / name).write_bytes((work / name).read_bytes())
    return target


def test_a_report_without_measurements_is_refused(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "report.json"
    wrong.write_text('{"candidates": 3}')
    arguments = command(work, profile, tmp_path / "p", "--measurements", str(wrong))
    assert "is not a build's report" in refused(capsys, arguments)


@pytest.fixture
def dask_scheduler(tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("distributed")
    port = free_port()
    commands = (
        ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port),
         "--no-dashboard", "--no-show"],
        ["distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "2",
         "--nworkers", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1",
         "--local-directory", str(tmp_path)],
    )  # fmt: skip
    with (tmp_path / "dask.log").open("wb") as log:
        processes = [
            subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=log, stderr=log)
            for command in commands
        ]
        try:
            yield f"dask://127.0.0.1:{port}"
        finally:
            for process in processes:
                process.kill()  # told to end, a worker looks for its scheduler for half a minute
                process.wait(PATIENCE_S)


@pytest.mark.thorough
def test_a_dask_cluster_makes_the_same_files(
    work: Path,
    profile: Path,
    plain: Plain,
    dask_scheduler: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ("--executor", dask_scheduler, "--measurements", str(plain.report))
    there = built(
        capsys, command(work, profile, tmp_path / "there", *more, cache=tmp_path / "cache")
    )
    digests = [
        {c["name"]: c["files_sha256"] for c in result["candidates"]}
        for result in (plain.result, there)
    ]
    assert digests[0] == digests[1]
    assert "done" in {step["state"] for step in there["steps"]}


def test_an_executor_that_is_not_there_is_named(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(work, profile, tmp_path / "p", "--executor", "slurm")
    assert "there is no executor 'slurm'; use local or dask://HOST:PORT" in refused(
        capsys, arguments
    )


def test_one_set_of_samples_is_split_and_the_split_is_told(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(work, profile, tmp_path / "p")
    place = arguments.index("--calibration")
    del arguments[place : place + 2]
    result = built(capsys, arguments)
    assert any("one set of 450 samples was split" in note for note in result["notes"])
    assert result["samples"] < 450
    assert candidate(result, "onnxruntime-int8-reduced")["accuracy"]["samples"] == result["samples"]


def test_raw_samples_are_prepared_by_a_declaration_that_goes_into_the_package(
    work: Path, profile: Path, plain: Plain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("calibration", "evaluation"):
        with np.load(work / f"{name}.npz") as arrays:
            raw = np.round(arrays["input"] * 16).astype(np.uint8).transpose(0, 2, 3, 1)
            np.savez(tmp_path / f"{name}.npz", x=raw, y=arrays["label"])
    (tmp_path / "digits.onnx").write_bytes((work / "digits.onnx").read_bytes())
    declared = tmp_path / "how.toml"
    declared.write_text(
        '[x]\nsource_datatype = "UINT8"\nsource_layout = "NHWC"\nlayout = "NCHW"\nscale = 0.0625\n'
    )
    result = built(
        capsys,
        command(tmp_path, profile, tmp_path / "raw", "--preprocessing", str(declared)),
    )
    name = "onnxruntime-fp32"
    assert candidate(result, name)["accuracy"] == candidate(plain.result, name)["accuracy"]
    # The draw goes by the raw samples, so that another half of them calibrates.
    quantized = candidate(result, "onnxruntime-int8-reduced")["accuracy"]
    assert quantized["retention"] > 0.99
    assert quantized["sqnr_db"] > 30
    manifest, _ = open_package(tmp_path / "raw")
    found = manifest.variant(name).info.preprocessing["input"]
    assert (found.source_layout, found.layout, found.scale) == ("NHWC", "NCHW", 0.0625)


def test_int8_that_misses_the_gate_is_repaired_and_says_what_it_cost(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = digits_copy(work, tmp_path / "hard")
    (folder / "digits.onnx").write_bytes(hard_digits())
    result = built(capsys, command(folder, profile, tmp_path / "p"))
    plain = candidate(result, "onnxruntime-int8-reduced")
    repaired = candidate(result, "onnxruntime-int8-reduced-repaired")
    assert plain["accuracy"]["retention"] < 0.99
    assert repaired["accuracy"]["retention"] >= 0.99
    # Whether another variant was faster on this machine is another question.
    assert repaired["profiles"]["box"]["excess"] is None, "no gate refuses it"
    assert repaired["size_bytes"] < candidate(result, "onnxruntime-fp32")["size_bytes"]
    note = next(n for n in result["notes"] if n.startswith("onnxruntime-int8-reduced-repaired: "))
    assert "stay in float" in note
    assert " trials; " in note
    unrepaired = built(
        capsys,
        command(folder, profile, tmp_path / "q", "--repair-trials", "0"),
    )
    assert not [c for c in unrepaired["candidates"] if c["name"].endswith("-repaired")]


def warnings(result: dict[str, Any]) -> list[str]:
    """The warnings about the figures; how busy the machine was is no matter of the samples."""
    notes = [note for note in result["notes"] if note.startswith("warning: ")]
    return [note for note in notes if not note.startswith("warning: other processes ")]


def test_few_samples_are_a_warning_and_strict_gates_refuse_what_they_cannot_show(
    work: Path, profile: Path, plain: Plain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "onnxruntime-int8-reduced"
    known = candidate(plain.result, name)["accuracy"]
    low, retention = known["certainty"]["retention_low"], known["retention"]
    assert low < retention
    # A gate between the bound and the figure: too few samples to tell.
    gate = ("--min-retention", str((low + min(retention, 1.0)) / 2), "--repair-trials", "0")
    result = built(capsys, command(work, profile, tmp_path / "lenient", *gate))
    accuracy = candidate(result, name)["accuracy"]
    needed = accuracy["certainty"]["samples_needed"]
    assert needed > accuracy["samples"]
    assert candidate(result, name)["profiles"]["box"]["doubt"].startswith("cannot tell: ")
    assert any(f"{name} ({accuracy['samples']}, {needed:,}" in note for note in warnings(result))
    written = {v.name: v.info.accuracy for v in open_package(tmp_path / "lenient")[0].variants}
    assert written[name] == convert(accuracy, Accuracy), "the manifest says it too"
    strict = built(capsys, command(work, profile, tmp_path / "strict", *gate, "--strict"))
    assert not candidate(strict, name)["profiles"]["box"]["kept"]
    assert [v.name for v in open_package(tmp_path / "strict")[0].variants] == ["onnxruntime-fp32"]
    assert not warnings(strict)


def test_ctrl_c_ends_every_process_and_leaves_no_package(
    work: Path, profile: Path, tmp_path: Path
) -> None:
    arguments = command(work, profile, tmp_path / "p", cache=tmp_path / "interrupted")
    process = subprocess.Popen(
        [sys.executable, "-m", "controller.cli", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    entries = tmp_path / "interrupted" / "steps"
    until(lambda: len(list(entries.glob("*/*/entry.json"))) >= 5, "the first steps")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not out
    assert not (tmp_path / "p").exists()
    until(lambda: not running_steps(str(tmp_path)), "the end of every step")
