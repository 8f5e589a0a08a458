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
from pathlib import Path

import numpy as np
import pytest

from controller.cli import main
from packager.package.directory import load_trust, open_package
from packager.package.keys import generate_key, load_key
from tests.integration.builds import (
    QUICK,
    build_command,
    built,
    candidate,
    contents,
    digits,
    names,
    proven,
    refused,
    running_steps,
    write_profile,
)
from tests.models import ROOT, cifar_images, trained
from tests.simulators.patience import until
from wire.clock import SystemClock
from wire.trust.root import Role, TrustRoot, encode_key

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's model and data, a key, and a trust root that believes it."""
    root = digits(tmp_path_factory.mktemp("packager"))
    write_profile(root, "onnxruntime")
    key = generate_key(root / "release.key")
    release = Role(keys=(encode_key(key.public_key),))
    director = Role(keys=(encode_key(bytes(32)),))
    (root / "trust.json").write_bytes(TrustRoot(release=release, director=director).to_bytes())
    return root


def command(work: Path, output: Path, *more: str, cache: Path | None = None) -> list[str]:
    """Return the arguments of a signed build for one runtime."""
    signed = ("--key", str(work / "release.key"), *QUICK, *more)
    return build_command(work, work / "box.toml", output, *signed, cache=cache)


@pytest.fixture(scope="module")
def package(work: Path) -> Path:
    output = work / "package"
    assert main(command(work, output)) == 0
    return output


def test_a_package_is_proven_and_believed(package: Path, work: Path) -> None:
    manifest = proven(package)
    assert {"onnxruntime-fp32", "onnxruntime-int8-reduced"} <= names(manifest)
    for variant in manifest.variants:
        assert variant.info.golden is not None
        assert variant.info.golden.min_agreement == 1.0
    _, index = open_package(package, trust=load_trust(work / "trust.json"))
    assert index.size_bytes == sum(e.size_bytes for e in index.files)


def test_int8_is_smaller_and_nothing_tells_where_it_was_built(package: Path, work: Path) -> None:
    manifest, _ = open_package(package)
    size = {v.name: v.info.size_bytes for v in manifest.variants}
    assert size["onnxruntime-int8-reduced"] < size["onnxruntime-fp32"] / 3
    for path, content in contents(package).items():
        assert str(work).encode() not in content, path
        assert str(ROOT).encode() not in content, path


def test_a_second_build_does_nothing_and_gives_the_same_bytes(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = built(capsys, command(work, work / "second"))
    assert not [s for s in result["steps"] if s["seconds"]]
    assert contents(work / "second") == contents(package)
    assert main(["package", "diff", str(package), str(work / "second")]) == 0


def test_costs_are_measured_again_where_that_is_asked_for(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ("--min-duration-s", "0.1")
    built(capsys, command(work, work / "known", *longer))
    result = built(capsys, command(work, work / "third", "--remeasure", *longer))
    again = {s["name"] for s in result["steps"] if s["state"] == "done"}
    measured = {c["name"]: c["performance"]["relative"] for c in result["candidates"]}
    assert again == {f"measure-{name}" for name in measured}
    for relative in measured.values():
        assert relative["reference"] == "onnxruntime"
        assert relative["low"] <= relative["ratio"] <= relative["high"]
    settled = built(capsys, command(work, work / "fourth", *longer))
    assert not [s for s in settled["steps"] if s["seconds"]]
    assert contents(work / "fourth") == contents(work / "third"), "the cache has the new figures"
    assert names(open_package(work / "third")[0]) >= {"onnxruntime-fp32"}
    assert package.is_dir()
    both = command(work, work / "fifth", "--remeasure", "--measurements", "report.json")
    assert "leave out --remeasure or --measurements" in refused(capsys, both)


def test_a_package_can_be_shown_verified_and_compared(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["package", "show", str(package)]) == 0
    shown = capsys.readouterr().out
    assert "onnxruntime-int8-reduced" in shown
    assert " (not checked)" in shown, "anybody can write the name of a key into a package"
    verify = ["package", "verify", str(package), "--trust", str(work / "trust.json")]
    assert main(verify) == 0
    keyid = load_key(work / "release.key").keyid
    assert main(["package", "show", str(package), "--json"]) == 0
    assert keyid in capsys.readouterr().out

    changed = work / "changed"
    shutil.copytree(package, changed)
    model = changed / "onnxruntime-int8-reduced" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    verify[2] = str(changed)
    assert main(verify) == 1, "the answer is no"
    assert "onnxruntime-int8-reduced/model.onnx was changed" in capsys.readouterr().err
    assert main(["key", "generate", str(work / "other.key")]) == 0
    other = ["--key", str(work / "other.key")]
    assert main(["package", "sign", str(changed), *other]) == 2
    assert main(["package", "diff", str(package), str(changed)]) == 2
    again = shutil.copytree(package, work / "again")
    assert main(["package", "sign", str(again), *other]) == 0
    verify[2] = str(again)
    assert main(verify) == 1
    (again / "package.dsse.json").unlink()
    assert main(verify) == 1
    assert "is not signed" in capsys.readouterr().err
    verify[2] = str(work / "nothing")
    assert main(verify) == 2, "nothing was checked"
    assert main(["package", "sign", str(again), *other]) == 0
    assert main(["package", "diff", str(package), str(again)]) == 0


def test_a_dry_run_writes_no_package(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(work, work / "dry", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert "planned" in shown
    assert "made for aarch64" in shown
    assert "only if onnxruntime-int8-reduced misses the quality gate" in shown
    assert not (work / "dry").exists()


def test_what_no_variant_can_reach_fails_with_the_nearest_miss(
    package: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert package.is_dir()  # the figures are in the cache
    fault = refused(capsys, command(work, work / "none", "--max-size", "1000"), status=1)
    assert "the nearest is onnxruntime-int8-reduced" in fault
    assert "> 1000 bytes" in fault
    assert not (work / "none").exists()


def test_a_killed_quantizer_costs_one_candidate_and_never_the_build(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(work / "calibration.npz") as arrays:
        np.savez(work / "fewer.npz", input=arrays["input"][:32])
    killed: list[int] = []

    def kill() -> bool:
        found = running_steps(str(work / "cache" / "work" / "build-onnxruntime-int8-reduced-"))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        killed.extend(found)
        return bool(found)

    killer = threading.Thread(target=until, args=(kill,))
    killer.start()
    arguments = command(work, work / "survivor")
    arguments[arguments.index("--calibration") + 1] = str(work / "fewer.npz")
    result = built(capsys, arguments)
    killer.join()
    assert killed
    name = "onnxruntime-int8-reduced"
    assert (
        candidate(result, name)["lost"]
        == f"build-{name}: the process of this step was ended by SIGKILL"
    )
    assert not candidate(result, "onnxruntime-fp16")["lost"]
    manifest, _ = open_package(work / "survivor", trust=load_trust(work / "trust.json"))
    assert "onnxruntime-fp32" in names(manifest)


def test_a_killed_build_leaves_nothing_running_and_goes_on_from_its_cache(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    arguments = command(work, tmp_path / "package", "--float-only", cache=cache)
    process = subprocess.Popen([sys.executable, "-m", "controller.cli", *arguments], cwd=ROOT)
    try:
        until(lambda: len(list(cache.glob("steps/*/*/entry.json"))) >= 2)
    finally:
        process.kill()
        process.wait()
    until(lambda: not running_steps(str(cache)), "the end of all steps")
    assert not (tmp_path / "package").exists()
    states = [step["state"] for step in built(capsys, arguments)["steps"]]
    assert states[:2] == ["cached", "cached"]
    assert "cached" in states
    assert "done" in states


@pytest.mark.thorough
def test_a_trained_residual_network_keeps_its_accuracy_in_int8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(trained("cifar10/cifar_resnet20.onnx"), tmp_path)
    for name, file, count in (("calibration", "calib512", 64), ("evaluation", "val1000", 300)):
        images = cifar_images(file, count)
        np.savez(tmp_path / f"{name}.npz", x=images.x, y=images.labels)
    code = main([
        "build", str(tmp_path / "cifar_resnet20.onnx"), *QUICK,
        "-p", str(write_profile(tmp_path, "onnxruntime")),
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
    arguments = command(work, tmp_path / "out", cache=small / "cache")
    fleet = shlex.join([sys.executable, "-m", "controller.cli", *arguments])
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
