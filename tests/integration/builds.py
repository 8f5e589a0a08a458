"""What tests of whole builds share: models with their data, a way to build, and what must hold."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from controller.cli import main
from packager.package.directory import open_package
from runtime_adapters.golden import check_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.models import DIGITS, write_digits_data
from wire.package.index import asset_directory
from wire.package.manifest import Manifest

QUICK = ("--min-runs", "20", "--min-duration-s", "0")
"""For tests that are about something else than latency."""

PROFILE = """\
name = "{name}"
architecture = "{architecture}"
isa_features = [{features}]
cpu_count = 2
memory_bytes = {memory_bytes}
storage_bytes = 1073741824
runtimes = [{runtimes}]
"""


def digits(folder: Path) -> Path:
    """Put the demo's model and data into a folder."""
    shutil.copy(DIGITS, folder)
    write_digits_data(folder)
    return folder


def write_profile(
    folder: Path,
    *runtimes: str,
    name: str = "box",
    architecture: str = "x86_64",
    features: tuple[str, ...] = ("avx2", "fma", "sse4_2"),
    memory_bytes: int = 2**30,
) -> Path:
    """Write a profile."""
    path = folder / f"{name}.toml"
    path.write_text(
        PROFILE.format(
            name=name,
            architecture=architecture,
            features=", ".join(map(json.dumps, features)),
            memory_bytes=memory_bytes,
            runtimes=", ".join(map(json.dumps, runtimes)),
        )
    )
    return path


def build_command(
    folder: Path, profile: Path, output: Path, *more: str, cache: Path | None = None
) -> list[str]:
    """Return the arguments of a build of the digits model."""
    return [
        "build", str(folder / "digits.onnx"), "-p", str(profile),
        "--calibration", str(folder / "calibration.npz"),
        "--evaluation", str(folder / "evaluation.npz"),
        "--cache", str(cache or folder / "cache"), "-o", str(output), *more,
    ]  # fmt: skip


def built(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    """Build, and return the result."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result: dict[str, Any] = json.loads(captured.out)
    return result


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *, status: int = 2) -> str:
    """Build something impossible, and return the one line that says so."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == status
    assert captured.err.startswith("fleet: ")
    assert captured.err.count("\n") == 1
    assert not captured.out
    return captured.err


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files of a package."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def candidate(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a result says of a candidate."""
    found: dict[str, Any] = next(c for c in result["candidates"] if c["name"] == name)
    return found


def proven(package: Path, *, min_retention: float = 0.99) -> Manifest:
    """Open a package, check that its figures make sense, and run its golden samples as a device."""
    manifest, _ = open_package(package)
    assert manifest.variants
    for variant in manifest.variants:
        info, folder = variant.info, package / variant.directory
        assert info.size_bytes == sum(len(content) for content in contents(folder).values())
        assert info.accuracy is not None
        assert min_retention <= info.accuracy.retention <= 2.0
        assert info.accuracy.agreement is None or 0.0 <= info.accuracy.agreement <= 1.0
        assert info.accuracy.samples >= 8
        if info.performance is not None:
            assert 0 < info.performance.latency_p50_ms <= info.performance.latency_p95_ms < 1000
            assert 2**20 < info.performance.peak_memory_bytes < 2**30
        assert info.golden is not None
        assert info.golden.samples >= 8
        if os.uname().machine in (info.requirements.architectures or (os.uname().machine,)):
            session = open_session(folder, info, Limits())
            found = check_golden(session, info, package / asset_directory(info.golden.asset))
            session.close()
            assert found.passed, (variant.name, found.detail)
    return manifest


def names(manifest: Manifest) -> set[str]:
    """Return the names of a package's variants."""
    return {variant.name for variant in manifest.variants}


def running_steps(text: str) -> list[int]:
    """Return the processes of steps whose command lines hold a text, such as their cache."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and "packager.steps" in line:
            found.append(int(path.parent.name))
    return found
