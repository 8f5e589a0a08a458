"""`fleet-agent profile detect` in an environment as a device has it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.simulators.device_environment import ROOT, device_environment
from tests.simulators.patience import PATIENCE_S
from wire.profile import profile_from_toml


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with one runtime; return the folder of its programs."""
    return device_environment(tmp_path_factory.mktemp("device"), "numpy", "onnxruntime")


def detect(programs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "fleet-agent", "profile", "detect", *options],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def test_a_device_describes_itself_with_the_runtimes_that_it_has(programs: Path) -> None:
    done = detect(programs, "--name", "my-board")
    assert (done.returncode, done.stderr) == (0, "")
    profile = profile_from_toml(done.stdout.encode())
    assert (profile.name, profile.architecture) == ("my-board", os.uname().machine)
    assert set(profile.runtimes) <= {"onnxruntime", "tvm"}
    assert "onnxruntime" in profile.runtimes
    assert json.loads(detect(programs, "--json").stdout)["architecture"] == os.uname().machine


def test_it_writes_a_file_once(programs: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    done = detect(programs, "-o", str(path))
    assert (done.returncode, done.stdout) == (0, f"wrote {path}\n")
    assert "onnxruntime" in profile_from_toml(path.read_bytes()).runtimes
    again = detect(programs, "-o", str(path))
    assert again.returncode == 2
    assert again.stderr == f"fleet-agent: {path} exists already; name another file\n"
    nowhere = detect(programs, "-o", str(tmp_path / "none" / "profile.toml"))
    assert nowhere.returncode == 2
    assert nowhere.stderr.count("\n") == 1


def test_a_bad_name_is_refused_in_one_line(programs: Path) -> None:
    done = detect(programs, "--name", "My Board")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is not a plain name" in done.stderr
    assert "--name" in done.stderr


def test_fleet_in_that_environment_names_the_command_of_the_device(programs: Path) -> None:
    done = subprocess.run(
        [programs / "python", "-m", "controller", "profile", "detect"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(
        "fleet: typer is not installed here; install 'edgefleet[controller]'"
    )
    assert "fleet-agent profile detect" in done.stderr
