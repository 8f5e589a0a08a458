"""Figures that a build is given: impossible ones end it before anything is built."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from packager.errors import BuildError
from packager.run.earlier_builds import read_measurements
from tests.unit.wire.test_measuring import GOOD
from wire.codec import to_json
from wire.measuring import FieldFile, ProfileFigures
from wire.package.performance import FieldFigures, Performance


def field_file(folder: Path, performance: Performance) -> Path:
    path = folder / "figures.json"
    figures = FieldFigures(performance=performance, devices=1, at_s=1.0)
    one = ProfileFigures(
        profile="box", release="m:1", variant="v", files_sha256="0" * 64, figures=figures
    )
    path.write_bytes(to_json(FieldFile(field=(one,))))
    return path


def test_possible_figures_are_read(tmp_path: Path) -> None:
    (found,) = read_measurements(field_file(tmp_path, GOOD)).field
    assert found.figures.performance == GOOD


@pytest.mark.parametrize("latency_ms", [-1.0, 0.0, 1e300])
@pytest.mark.parametrize("kind", ["field", "report"])
def test_impossible_figures_are_refused_with_the_variant(
    tmp_path: Path, latency_ms: float, kind: str
) -> None:
    wrong = msgspec.structs.replace(GOOD, latency_p50_ms=latency_ms)
    path = field_file(tmp_path, wrong)
    if kind == "report":
        path.write_bytes(to_json({"candidates": [{"name": "v", "performance": wrong}]}))
    with pytest.raises(BuildError, match="the figures of 'v' are not possible") as caught:
        read_measurements(path)
    assert caught.value.remedy == "use a file as it was written"


@pytest.mark.parametrize(
    ("devices", "at_s"), [(0, 1.0), (-3, 1.0), (10**30, 1.0), (1, -1.0), (1, 1e300), (1, 2.6e11)]
)
def test_figures_of_no_device_or_no_time_are_refused(
    tmp_path: Path, devices: int, at_s: float
) -> None:
    path = field_file(tmp_path, GOOD)
    told = json.loads(path.read_text())
    told["field"][0]["figures"] |= {"devices": devices, "at_s": at_s}
    path.write_text(json.dumps(told))
    with pytest.raises(BuildError) as caught:
        read_measurements(path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"schema_version": 1, "field": []}',
        '{"id": "m0", "devices": []}',
        '{"candidates":[]}',
    ],
)
def test_a_file_without_figures_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(content)
    with pytest.raises(BuildError, match="has no figures") as caught:
        read_measurements(path)
    assert "fleet measure figures --out" in caught.value.remedy


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = field_file(tmp_path, GOOD)
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":2'))
    with pytest.raises(BuildError, match="schema_version 2"):
        read_measurements(path)
