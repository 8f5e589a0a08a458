"""Searches: what is tried, in which order, what a goal drops, and what is left as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli import main
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
    write_profile,
)

REFERENCE = "onnxruntime-fp32"
METHODS = ("exhaustive", "random", "tpe")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def profile(work: Path) -> Path:
    return write_profile(work, "onnxruntime", "openvino")


def command(work: Path, profile: Path, output: Path, *more: str) -> list[str]:
    return build_command(work, profile, output, *QUICK, "--repair-trials", "0", *more)


def planned(
    work: Path, profile: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> dict[str, Any]:
    capsys.readouterr()
    assert main(command(work, profile, work / "none", "--dry-run", "--json", *more)) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


@pytest.mark.few(2)
@pytest.mark.parametrize("method", METHODS)
def test_a_search_builds_as_many_candidates_as_its_cap_and_says_which(
    method: str, work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if method != "exhaustive":
        pytest.importorskip("optuna")
    package = tmp_path / "package"
    more = ("--search", method, "--search-cap", "3", "--search-seed", "1", "--goal", "size")
    result = built(capsys, command(work, profile, package, *more))
    search = result["search"]
    assert (search["method"], search["cap"], search["seed"]) == (method, 3, 1)
    assert len(search["tried"]) == 3
    assert [c["name"] for c in result["candidates"]] == [REFERENCE, *search["tried"]]
    space = {
        c["name"] for c in planned(work, profile, capsys, "--search", "exhaustive")["candidates"]
    }
    assert {REFERENCE, *search["tried"], *search["untried"]} == space
    assert len(space) == 1 + len(search["tried"]) + len(search["untried"])
    notes = " ".join(result["notes"])
    assert f"tried 3 of {search['space']} candidates" in notes
    assert f"{len(search['untried'])} candidates were not tried because of --search-cap 3" in notes
    built_ones = [c for c in result["candidates"] if not c["lost"]]
    smallest = min(built_ones, key=lambda c: c["size_bytes"])
    assert candidate(result, search["best"]["box"])["size_bytes"] <= 1.01 * smallest["size_bytes"]
    assert search["best"]["box"] in names(proven(package))
    again = built(capsys, command(work, profile, package, *more, "--force"))
    assert again["search"] == search
    assert again["digest"] == result["digest"]


def test_a_goal_drops_what_misses_it_but_never_the_reference(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--search", "exhaustive", "--search-cap", "3", "--goal", "size: at least 60% smaller")
    result = built(capsys, command(work, profile, tmp_path / "package", *more))
    whole = candidate(result, REFERENCE)["size_bytes"]
    missed = result["search"]["missed"]["box"]
    large = {
        c["name"] for c in result["candidates"] if not c["lost"] and c["size_bytes"] > 0.4 * whole
    }
    assert set(missed) == large - {REFERENCE}
    assert missed
    for name, why in missed.items():
        verdict = candidate(result, name)["profiles"]["box"]
        assert verdict["kept"] is False
        assert verdict["reason"] == why
        assert "goal 'size: at least 60% smaller' is missed: it is " in why
        assert any(f"{name} dropped: {why}" in note for note in result["notes"])
    assert candidate(result, REFERENCE)["profiles"]["box"]["kept"] is True


def test_what_keep_names_is_built_beside_the_cap(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "openvino-int8-reduced-performance"
    more = ("--search", "exhaustive", "--search-cap", "1", "--keep", name)
    result = built(capsys, command(work, profile, tmp_path / "package", *more))
    assert [c["name"] for c in result["candidates"]][:2] == [REFERENCE, name]
    assert len(result["candidates"]) == 3
    assert candidate(result, name)["profiles"]["box"]["kept"] is True


def test_a_latency_goal_for_another_machine_is_said_to_hold_nothing(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_profile(work, "onnxruntime", name="other", features=("sse4_2",))
    goal = "latency: at least 99% faster"
    more = ("--search", "exhaustive", "--search-cap", "1", "--goal", goal)
    result = built(capsys, command(work, other, tmp_path / "package", *more))
    assert result["here"] == []
    assert result["search"]["missed"] == {"other": {}}
    assert any(f"{goal} cannot be judged" in note for note in result["notes"])


def test_without_a_search_the_plan_and_the_package_are_as_before(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {c["name"] for c in planned(work, profile, capsys)["candidates"]}
    wide = {
        c["name"] for c in planned(work, profile, capsys, "--search", "exhaustive")["candidates"]
    }
    assert usual < wide
    plain = built(capsys, command(work, profile, tmp_path / "plain"))
    assert "search" not in plain
    all_usual = ("--search", "exhaustive", "--search-cap", str(len(usual) - 1))
    searched = built(capsys, command(work, profile, tmp_path / "searched", *all_usual))
    digests = [
        {c["name"]: c["files_sha256"] for c in result["candidates"]} for result in (plain, searched)
    ]
    assert digests[0] == digests[1]
    files = [contents(tmp_path / name) for name in ("plain", "searched")]
    shared = files[0].keys() & files[1].keys()
    assert {path for path in shared if path.endswith(("model.onnx", "model.bin"))}


def test_a_goal_that_cannot_be_read_ends_the_build_at_once(
    work: Path, profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--search", "exhaustive", "--goal", "latency: at least 20 faster")
    assert "'at least 20 faster' is not a limit" in refused(
        capsys, command(work, profile, tmp_path / "package", *more)
    )
