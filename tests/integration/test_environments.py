"""Environments of tools with pins of their own; here none is fetched."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from packager.errors import BuildError
from packager.tools import environments


@pytest.mark.parametrize(
    ("name", "pin"),
    [("onnx2tf", "onnx2tf==2.6.9"), ("iree-aarch64", "iree-base-runtime==")],
)
def test_a_lock_names_every_file_by_hash_and_no_address(name: str, pin: str) -> None:
    lock = (environments.LOCKS / f"{name}.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    assert "index" not in lock
    pins = re.split(r"\n(?=\S)", lock.strip())
    assert any(line.startswith(pin) for line in pins)
    for line in pins:
        assert re.match(r"[a-z0-9-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", line), line


def test_every_lock_is_a_tool_that_can_be_installed() -> None:
    assert environments.names() == ("iree-aarch64", "onnx2tf")


def test_a_version_stands_for_the_lock() -> None:
    lock = (environments.LOCKS / "onnx2tf.lock").read_bytes()
    assert environments.environment_version("onnx2tf") == hashlib.sha256(lock).hexdigest()[:16]


def test_an_environment_that_is_not_set_up_is_not_made(tmp_path: Path) -> None:
    assert environments.environment_python("onnx2tf", tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorflow", "../onnx2tf", ""])
def test_only_known_environments_exist(name: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the environments are iree-aarch64, onnx2tf"):
        environments.install(name, tmp_path)


def test_an_installation_that_fails_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "making-killed").mkdir()
    told: list[str] = []
    with pytest.raises(BuildError, match="pip failed: ERROR: ") as caught:
        environments.install("onnx2tf", tmp_path, told.append)
    assert "\n" not in str(caught.value)
    assert len(told) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_the_folder_of_environments_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(environments.ROOT_VARIABLE, raising=False)
    assert environments.default_root() == tmp_path / "edgefleet" / "environments"
    monkeypatch.setenv(environments.ROOT_VARIABLE, str(tmp_path / "mine"))
    assert environments.default_root() == tmp_path / "mine"
