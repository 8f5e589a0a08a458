"""Whole builds through the command line: real models, real quantizers, each step in its process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli import main
from packager.bundle import load_trust, open_package
from packager.keys import generate_key, load_key
from runtime_adapters.golden import check_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.clock import SystemClock
from wire.package import asset_directory
from wire.trust import Role, TrustRoot, encode_key

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
MODELS = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
CLOCK = SystemClock()
PROFILES = ("-p", "x86-64-vnni", "-p", "rpi4", "-p", "edge-min")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's model and data, a key, and a trust root that believes it."""
    if not (DIGITS / "digits.onnx").is_file() or not (DIGITS / "data.py").is_file():
        pytest.skip("the digits example is not there")
    root = tmp_path_factory.mktemp("packager")
    shutil.copy(DIGITS / "digits.onnx", root)
    subprocess.run([sys.executable, DIGITS / "data.py", root], check=True, capture_output=True)
    key = generate_key(root / "release.key")
    release = Role(keys=(encode_key(key.public_key),))
    director = Role(keys=(encode_key(bytes(32)),))
    (root / "trust.json").write_bytes(TrustRoot(release=release, director=director).to_bytes())
    return root


def command(work: Path, output: Path, *more: str) -> list[str]:
    return [
        "build", str(work / "digits.onnx"), *PROFILES,
        "--calibration", str(work / "calibration.npz"),
        "--evaluation", str(work / "evaluation.npz"),
        "--key", str(work / "release.key"), "--cache", str(work / "cache"),
        "--keep", "openvino-int8", "-o", str(output), *more,
    ]  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def package(work: Path) -> Path:
    output = work / "first"
    assert main(command(work, output)) == 0
    return output


def test_three_profiles_get_variants_on_two_runtimes(package: Path, work: Path) -> None:
    manifest, index = open_package(package, trust=load_trust(work / "trust.json"))
    assert len(manifest.variants) >= 3
    assert {v.info.runtime for v in manifest.variants} == {"onnxruntime", "openvino"}
    for profile in ("x86-64-vnni", "rpi4", "edge-min"):
        kept = [v.name for v in manifest.variants if profile in v.info.profiles]
        assert "onnxruntime-fp32" in kept
        assert len(kept) >= 2
    for variant in manifest.variants:
        assert variant.info.accuracy is not None
        assert variant.info.accuracy.retention >= 0.99
        assert variant.info.performance is not None
        assert variant.info.performance.runs >= 200
        assert variant.info.performance.machine.startswith(os.uname().machine)
    assert index.size_bytes == sum(e.size_bytes for e in index.files)


def test_every_variant_reproduces_the_golden_samples(package: Path) -> None:
    manifest, _ = open_package(package)
    for variant in manifest.variants:
        golden = variant.info.golden
        assert golden is not None
        assert golden.samples >= 8
        assert golden.min_agreement == 1.0
        session = open_session(package / variant.directory, variant.info, Limits())
        result = check_golden(session, variant.info, package / asset_directory(golden.asset))
        session.close()
        assert result.passed, (variant.name, result.detail)


def test_int8_is_smaller_and_nothing_tells_where_it_was_built(package: Path, work: Path) -> None:
    manifest, _ = open_package(package)
    size = {v.name: v.info.size_bytes for v in manifest.variants}
    assert size["onnxruntime-int8"] < size["onnxruntime-fp32"] / 3
    for path, content in contents(package).items():
        assert str(work).encode() not in content, path
        assert str(ROOT).encode() not in content, path


def test_a_second_build_does_nothing_and_gives_the_same_bytes(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(command(work, work / "second", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert {step["state"] for step in result["steps"]} == {"cached"}
    assert contents(work / "second") == contents(package)
    assert main(["package", "diff", str(package), str(work / "second")]) == 0


def test_a_package_can_be_shown_verified_and_compared(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["package", "show", str(package)]) == 0
    assert "onnxruntime-int8" in capsys.readouterr().out
    verify = ["package", "verify", str(package), "--trust", str(work / "trust.json")]
    assert main(verify) == 0
    keyid = load_key(work / "release.key").keyid
    assert main(["package", "show", str(package), "--json"]) == 0
    assert keyid in capsys.readouterr().out

    changed = work / "changed"
    shutil.copytree(package, changed)
    model = changed / "onnxruntime-int8" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    verify[2] = str(changed)
    assert main(verify) == 2
    assert "onnxruntime-int8/model.onnx was changed" in capsys.readouterr().err
    assert main(["key", "generate", str(work / "other.key")]) == 0
    assert main(["package", "sign", str(changed), "--key", str(work / "other.key")]) == 0
    assert main(verify) == 2
    assert main(["package", "diff", str(package), str(changed)]) == 1


def test_a_dry_run_writes_no_package(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(work, work / "dry", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert "planned" in shown
    assert "made for aarch64" in shown
    assert not (work / "dry").exists()


def test_what_no_variant_can_reach_fails_with_the_nearest_miss(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(command(work, work / "none", "--max-size", "1000")) == 2
    fault = capsys.readouterr().err
    assert fault.count("\n") == 1
    assert "nearest is onnxruntime-int8 with size 245667 bytes > 1000 bytes" in fault
    assert not (work / "none").exists()


def truncated(work: Path) -> dict[str, Path]:
    path = work / "truncated.onnx"
    path.write_bytes((work / "digits.onnx").read_bytes()[:-1000])
    return {"model": path}


def no_model(work: Path) -> dict[str, Path]:
    return {"model": work / "evaluation.npz"}


def missing(work: Path) -> dict[str, Path]:
    return {"model": work / "no such model.onnx"}


def same_data(work: Path) -> dict[str, Path]:
    return {"calibration": work / "evaluation.npz"}


def overlapping(work: Path) -> dict[str, Path]:
    path = work / "overlapping.npz"
    with np.load(work / "evaluation.npz") as arrays:
        np.savez(path, input=arrays["input"][:100])
    return {"calibration": path}


def wrong_shape(work: Path) -> dict[str, Path]:
    path = work / "wrong.npz"
    np.savez(path, input=np.zeros((20, 3, 8, 8), np.float32))
    return {"evaluation": path}


def open_key(work: Path) -> dict[str, Path]:
    path = work / "open.key"
    path.write_bytes(bytes(32))
    path.chmod(0o644)
    return {"key": path}


def unknown_profile(_work: Path) -> dict[str, Path]:
    return {"-p": Path("rpi99")}


def taken(work: Path) -> dict[str, Path]:
    return {"o": work}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (truncated, "truncated"),
        (no_model, "not an ONNX model"),
        (missing, "cannot be read: No such file"),
        (same_data, "calibration and evaluation are the same data"),
        (overlapping, "of the evaluation samples are among the calibration samples"),
        (wrong_shape, "has shape [3, 8, 8], the model takes [1, 8, 8]"),
        (open_key, "can be read by others (mode 0644)"),
        (unknown_profile, "there is no profile 'rpi99'"),
        (taken, "exists and is not a package"),
    ],
)
def test_each_bad_input_is_one_line_and_exit_code_2(
    spoil: Callable[[Path], dict[str, Path]],
    text: str,
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {
        "model": work / "digits.onnx",
        "calibration": work / "calibration.npz",
        "evaluation": work / "evaluation.npz",
        "key": work / "release.key",
        "-p": Path("edge-min"),
        "o": work / "bad",
    } | spoil(work)
    code = main([
        "build", str(given["model"]), "-p", str(given["-p"]),
        "--calibration", str(given["calibration"]), "--evaluation", str(given["evaluation"]),
        "--key", str(given["key"]), "-o", str(given["o"]), "--cache", str(work / "cache"),
    ])  # fmt: skip
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("fleet: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err
    assert not captured.out
    assert not (work / "bad").exists()


def processes_with(text: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and "packager.step" in line:
            found.append(int(path.parent.name))
    return found


def wait_for(ready: Callable[[], bool], *, timeout_s: float = 40.0) -> bool:
    deadline_s = CLOCK.monotonic_s() + timeout_s
    while CLOCK.monotonic_s() < deadline_s:
        if ready():
            return True
        CLOCK.sleep(0.02)
    return False


def test_a_killed_quantizer_costs_one_candidate_and_never_the_build(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(work / "calibration.npz") as arrays:
        np.savez(work / "fewer.npz", input=arrays["input"][:32])
    killed: list[int] = []

    def kill() -> bool:
        found = processes_with(str(work / "cache" / "work" / "build-openvino-int8"))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        killed.extend(found)
        return bool(found)

    killer = threading.Thread(target=wait_for, args=(kill,))
    killer.start()
    arguments = command(work, work / "survivor", "--json")
    arguments[arguments.index("--calibration") + 1] = str(work / "fewer.npz")
    capsys.readouterr()
    code = main(arguments)
    killer.join()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert killed
    assert code == 0
    lost = {c["name"]: c["lost"] for c in result["candidates"] if c["lost"]}
    assert lost == {"openvino-int8": "build-openvino-int8: its process was ended by SIGKILL"}
    manifest, _ = open_package(work / "survivor", trust=load_trust(work / "trust.json"))
    assert "openvino-fp16" in {v.name for v in manifest.variants}


def test_a_killed_build_leaves_nothing_running_and_goes_on_from_its_cache(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    arguments = [
        "build", str(work / "digits.onnx"), "-p", "edge-min",
        "--evaluation", str(work / "evaluation.npz"),
        "--cache", str(cache), "-o", str(tmp_path / "package"),
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "controller.cli", *arguments], cwd=ROOT)
    try:
        assert wait_for(lambda: len(list(cache.glob("steps/*/*/entry.json"))) >= 2)
    finally:
        process.kill()
        process.wait()
    assert wait_for(lambda: not processes_with(str(cache)), timeout_s=5.0)
    assert not (tmp_path / "package").exists()
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    states = [step["state"] for step in json.loads(capsys.readouterr().out)["steps"]]
    assert states[:2] == ["cached", "cached"]
    assert set(states) <= {"cached", "done"}


def test_a_trained_residual_network_keeps_its_accuracy_in_int8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = MODELS / "cifar10"
    if not (folder / "cifar_resnet20.onnx").is_file():
        pytest.skip(f"the CIFAR-10 model is not in {folder}; set EDGEFLEET_MODELS")
    shutil.copy(folder / "cifar_resnet20.onnx", tmp_path)
    with np.load(folder / "calib512.npz") as calibration:
        mean, std = calibration["mean"], calibration["std"]
        images = {"calibration": (calibration["x"][:64], calibration["y"][:64])}
    with np.load(folder / "val1000.npz") as evaluation:
        images["evaluation"] = (evaluation["x"][:300], evaluation["y"][:300])
    for name, (x, y) in images.items():
        scaled = ((x / np.float32(255) - mean) / std).astype(np.float32).transpose(0, 3, 1, 2)
        np.savez(tmp_path / f"{name}.npz", x=scaled, y=y)
    code = main([
        "build", str(tmp_path / "cifar_resnet20.onnx"), "-p", "edge-min",
        "--calibration", str(tmp_path / "calibration.npz"),
        "--evaluation", str(tmp_path / "evaluation.npz"), "--min-retention", "0.95",
        "--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "package"), "--json",
    ])  # fmt: skip
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    figures = {c["name"]: c for c in result["candidates"]}
    assert figures["onnxruntime-fp32"]["accuracy"]["value"] > 0.85
    assert figures["onnxruntime-int8-reduced"]["accuracy"]["retention"] > 0.97
    assert (
        figures["onnxruntime-int8-reduced"]["size_bytes"]
        < figures["onnxruntime-fp32"]["size_bytes"] / 2
    )
    manifest, _ = open_package(tmp_path / "package")
    assert len(manifest.variants) >= 2


def test_a_full_disk_is_named_and_ends_the_build(work: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    fleet = shlex.join([
        sys.executable, "-m", "controller.cli", "build", str(work / "digits.onnx"),
        "-p", "edge-min", "--evaluation", str(work / "evaluation.npz"),
        "--cache", str(small / "cache"), "-o", str(tmp_path / "out"),
    ])  # fmt: skip
    # A file system of one mebibyte, in a mount namespace of its own: no root needed.
    script = f"mount -t tmpfs -o size=1m tmpfs {shlex.quote(str(small))} || exit 77; {fleet}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this machine allows no mount namespace")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("fleet: no space left on the device of ")
    assert not (tmp_path / "out").exists()
