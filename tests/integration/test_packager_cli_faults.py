"""`fleet package`, `profile`, `key`, `tool` with what cannot be: one line, exit code 2, no rest."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.cli import main
from packager.package.keys import generate_key
from tests.integration.builds import QUICK, build_command, contents, digits, refused, write_profile
from tests.models import ROOT

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an unsigned package, what it was built from, and a key."""
    folder = digits(tmp_path_factory.mktemp("work"))
    profile = write_profile(folder, "onnxruntime")
    generate_key(folder / "release.key")
    arguments = build_command(folder, profile, folder / "package", "--float-only", *QUICK)
    assert main(arguments) == 0
    return folder


def no_manifest(package: Path) -> None:
    (package / "manifest.json").unlink()


def truncated_manifest(package: Path) -> None:
    path = package / "manifest.json"
    path.write_bytes(path.read_bytes()[:200])


def manifest_folder(package: Path) -> None:
    no_manifest(package)
    (package / "manifest.json").mkdir()


def manifest_pipe(package: Path) -> None:
    no_manifest(package)
    os.mkfifo(package / "manifest.json")


def pipe_beside(package: Path) -> None:
    os.mkfifo(package / "pipe")


def name_in_bytes(package: Path) -> None:
    (package / os.fsdecode(b"\xff\xfe")).touch()


def no_model(package: Path) -> None:
    (package / "onnxruntime-fp32" / "model.onnx").unlink()


def another_model(package: Path) -> None:
    model = package / "onnxruntime-fp32" / "model.onnx"
    model.write_bytes(model.read_bytes() + b" ")


def file_instead(package: Path) -> None:
    shutil.rmtree(package)
    package.write_bytes(b"package")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (shutil.rmtree, "is not a package: manifest.json: No such file"),
        (file_instead, "is not a package: manifest.json: Not a directory"),
        (no_manifest, "is not a package: manifest.json: No such file"),
        (manifest_folder, "is not a package: manifest.json: Is a directory"),
        (manifest_pipe, "manifest.json is not a plain file; copy, download or build the package"),
        (pipe_beside, "pipe is neither a plain file nor a directory"),
        (name_in_bytes, "'\\udcff\\udcfe' is not a name in UTF-8; copy, download or build"),
        (truncated_manifest, "is not a package: manifest.json: Input data was truncated; copy"),
        (
            another_model,
            "onnxruntime-fp32/model.onnx is not the file that the figures of onnxruntime-fp32 were",
        ),
        (no_model, "lacks onnxruntime-fp32/model.onnx; copy, download or build the package again"),
    ],
)
def test_what_is_no_whole_package_is_refused_by_every_command(
    spoil: Spoil, text: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = shutil.copytree(work / "package", tmp_path / "package")
    spoil(package)
    given, good = str(package), str(work / "package")
    for arguments in (
        ["show", given],
        ["show", given, "--json"],
        ["sign", given, "--key", str(work / "release.key")],
        ["diff", given, good],
        ["diff", good, given],
    ):
        assert text in refused(capsys, ["package", *arguments])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["package", "verify", "P", "--trust", "none.json"], "none.json cannot be read"),
        (["package", "verify", "P", "--trust", "P"], "package cannot be read: Is a directory"),
        (
            ["package", "verify", "P", "--trust", "/dev/zero"],
            "/dev/zero cannot be read: it is not a file",
        ),
        (["package", "sign", "P", "--key", "box.toml"], "is not a signing key"),
        (["key", "generate", "box.toml"], "exists already"),
        (["key", "generate", "none/new.key"], "cannot be written: No such file"),
        (["key", "show", "P"], "cannot be read: Is a directory"),
        (["profile", "show", "none.toml"], "none.toml cannot be read: No such file"),
        (["profile", "show", "P/"], "cannot be read: Is a directory"),
        (["profile", "show", "/dev/zero"], "/dev/zero cannot be read: it is not a file"),
        (["profile", "show", "./digits.onnx"], "digits.onnx: not a valid ProfileFile"),
        (["profile", "detect", "-o", "none/new.toml"], "cannot be written: No such file"),
        (["tool", "install", "none"], "there is no environment 'none'; the environments are"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_path_at_fault(
    arguments: list[str],
    text: str,
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(work)
    before = contents(work)
    given = [argument.replace("P", "package") for argument in arguments]
    assert text in refused(capsys, given)
    assert contents(work) == before


def test_a_folder_of_environments_that_is_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEFLEET_ENVIRONMENTS", str(tmp_path / "file"))
    fault = refused(capsys, ["tool", "install", "onnx2tf"])
    assert "file: File exists; name another folder with EDGEFLEET_ENVIRONMENTS" in fault


SCRIPT = """
mount -t tmpfs -o size=128k tmpfs "$1" || exit 77
head -c 131072 /dev/zero > "$1/fill" 2> /dev/null
shift; "$@"; code=$?; ls -A {place} >&2; exit $code
"""
"""Fills a file system of its own, in a mount namespace, which needs no root."""


@pytest.mark.parametrize("command", ["build", "report", "key", "profile"])
def test_a_full_disk_is_named_and_nothing_half_made_is_left(
    command: str, work: Path, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    box, more = work / "box.toml", ("--float-only", *QUICK)
    arguments = {
        "build": build_command(work, box, full / "new", *more),
        "report": build_command(
            work, box, tmp_path / "p", *more, "--report", str(full / "new.json")
        ),
        "key": ["key", "generate", str(full / "new.key")],
        "profile": ["profile", "detect", "-o", str(full / "new.toml")],
    }[command]
    script = SCRIPT.format(place=shlex.quote(str(full)))
    fleet = [sys.executable, "-m", "controller.cli", *arguments]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(full), *fleet],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this machine allows no mount namespace")
    assert done.returncode == 2, done.stderr
    fault, left = done.stderr.splitlines()
    assert fault.startswith(f"fleet: {full}/new")
    assert " cannot be written: No space left on device; name " in fault
    assert left == "fill"
