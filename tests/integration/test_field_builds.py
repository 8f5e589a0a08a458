"""Builds that get figures of the field: the package says them, and they decide."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from packager.package.directory import open_package
from tests.integration.builds import QUICK, build_command, built, contents, digits, write_profile
from wire.codec import to_json
from wire.measuring import FieldFile, ProfileFigures, files_digest
from wire.package.index import PROVENANCE_FILE
from wire.package.manifest import Manifest
from wire.package.performance import FieldFigures

ELSEWHERE = "board"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = digits(tmp_path_factory.mktemp("field"))
    path = write_profile(folder, "onnxruntime", name=ELSEWHERE)
    path.write_text(f'processor = "A board with another processor"\n{path.read_text()}')
    return folder


def measured(manifest: Manifest, latencies_ms: dict[str, float]) -> tuple[ProfileFigures, ...]:
    """Return what a device would say of a package."""
    found = []
    for variant in manifest.variants:
        performance = variant.info.performance
        assert performance is not None
        figures = FieldFigures(
            performance=msgspec.structs.replace(
                performance,
                latency_p50_ms=latencies_ms.get(variant.name, 9.0),
                relative=msgspec.UNSET,
                machine="x86_64 A board",
            ),
            devices=1,
            at_s=1.0,
        )
        found.append(
            ProfileFigures(
                profile=ELSEWHERE,
                release="digits:1",
                variant=variant.name,
                files_sha256=files_digest(variant.info),
                figures=figures,
            )
        )
    return tuple(found)


def given_measurements(package: Path) -> list[dict[str, str]]:
    """Return the digests of the measurements that a package says it was built with."""
    told = json.loads((package / PROVENANCE_FILE).read_bytes())
    needed = told["predicate"]["buildDefinition"]["resolvedDependencies"]
    return [one["digest"] for one in needed if one["name"] == "measurements"]


@pytest.mark.thorough
def test_a_second_build_uses_what_devices_measured_of_the_first(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = work / f"{ELSEWHERE}.toml"

    def command(name: str, *more: str) -> list[str]:
        return build_command(work, profile, tmp_path / name, *QUICK, *more)

    plain = built(capsys, command("first"))
    assert plain["here"] == []
    first, _ = open_package(tmp_path / "first")
    names = [variant.name for variant in first.variants]
    quick = names[-1]
    figures = tmp_path / "figures.json"
    figures.write_bytes(to_json(FieldFile(field=measured(first, {quick: 0.5}))))
    report = tmp_path / "report.html"
    more = ("--measurements", str(figures), "--max-latency", "1", "--report", str(report))

    told = built(capsys, command("second", *more))
    second, _ = open_package(tmp_path / "second")
    assert [v.name for v in second.variants] == [quick], "the others miss the gate there"
    (kept,) = second.variants
    assert kept.info.field
    assert kept.info.field[ELSEWHERE].performance.latency_p50_ms == 0.5
    assert kept.info.performance == first.variant(quick).info.performance
    assert {step["state"] for step in told["steps"]} <= {"cached", "done"}
    assert any("measured in the field, on 1 device (x86_64 A board)" in n for n in told["notes"])
    assert not any("--max-latency is not applied" in note for note in told["notes"])
    assert not any("--remeasure" in note for note in told["notes"]), "the field alone decides"
    assert given_measurements(tmp_path / "first") == []
    digest = hashlib.sha256(figures.read_bytes()).hexdigest()
    assert given_measurements(tmp_path / "second") == [{"sha256": digest}]
    page = report.read_text()
    assert "measured in the field" in page
    assert "0.500" in page
    (shown,) = [c for c in told["candidates"] if c["name"] == quick]
    assert shown["field"][ELSEWHERE]["devices"] == 1

    again = built(capsys, command("third"))
    assert "field" not in json.dumps(again["candidates"])
    assert contents(tmp_path / "first") == contents(tmp_path / "third")
