"""`fleet profile`: what is shipped, one of them, and this machine's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from controller.cli import main
from packager.device_profiles import load_profile, profile_names


def test_the_shipped_profiles_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [profile["name"] for profile in listed] == list(profile_names())
    assert main(["profile", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in profile_names())


def test_a_profile_is_shown_as_a_file_that_can_be_given_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["profile", "show", "jetson-orin-nano"]) == 0
    path = tmp_path / "mine.toml"
    path.write_text(capsys.readouterr().out)
    assert load_profile(str(path)) == load_profile("jetson-orin-nano")
    assert main(["profile", "show", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["accelerators"] == ["gpu-nvidia"]
    assert document["runtime_versions"]["onnxruntime"]


def test_another_name_for_a_profile_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", "x86-vnni", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "x86-64-vnni"


def test_this_machine_becomes_a_file_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "here.toml"
    assert main(["profile", "detect", "--name", "here", "-o", str(path)]) == 0
    profile = load_profile(str(path))
    assert profile.name == "here"
    assert profile.architecture == os.uname().machine
    assert "onnxruntime" in profile.runtimes
    assert main(["profile", "detect", "--name", "here", "-o", str(path)]) != 0
    assert "exists already" in capsys.readouterr().err


def test_an_unknown_profile_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", "rpi9"]) != 0
    assert "visionfive2" in capsys.readouterr().err
