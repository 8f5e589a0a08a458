"""Reports as files: whole or not at all, of two kinds, never inside the package."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from controller.cli.output import write_plain_json
from packager.device_profiles import load_profile
from packager.errors import BuildError
from packager.report.page import check_report_path, report_page, write_report
from packager.result import BuildResult, CandidateReport
from packager.run.pipeline import StepRecord

PROFILES = (load_profile("n100"),)


@pytest.fixture
def result(tmp_path: Path) -> BuildResult:
    lost = CandidateReport(
        name="tvm-fp32", runtime="tvm", precision="fp32", planned=("n100",), lost="it crashed"
    )
    return BuildResult(
        name="demo",
        version="1",
        package=str(tmp_path / "package"),
        digest="d" * 64,
        size_bytes=1000,
        signed=False,
        machine="x86_64 \u00b5 processor",
        metric="top1",
        samples=100,
        candidates=(lost,),
        impossible=(),
        notes=("a \u00b5 note",),
        steps=(StepRecord(name="prepare", state="done", seconds=1.5),),
    )


@pytest.mark.parametrize("name", ["report.txt", "report", "report.HTML", ".html"])
def test_other_kinds_of_report_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^a report cannot be written as .*; use a name with"):
        check_report_path(tmp_path / name)


def test_a_report_is_no_directory_and_no_part_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "d.html").mkdir()
    with pytest.raises(BuildError, match="is a directory"):
        check_report_path(tmp_path / "d.html")
    with pytest.raises(BuildError, match="would be a part of the package"):
        check_report_path(tmp_path / "p" / "x" / "r.html", tmp_path / "p")
    check_report_path(tmp_path / "p.html", tmp_path / "p")


def test_reports_are_written_whole_by_suffix(tmp_path: Path, result: BuildResult) -> None:
    target = tmp_path / "new" / "r.html"
    write_report(target, result, PROFILES)
    assert target.read_text(encoding="utf-8") == report_page(result, PROFILES)
    write_report(target.with_suffix(".json"), result, PROFILES)
    write_report(target, result, PROFILES)
    assert sorted(p.name for p in target.parent.iterdir()) == ["r.html", "r.json"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert json.loads(target.with_suffix(".json").read_bytes())["digest"] == result.digest
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BuildError, match="cannot be written"):
        write_report(tmp_path / "file" / "r.json", result, PROFILES)


def test_the_file_and_the_command_line_give_the_same_json(
    tmp_path: Path, result: BuildResult, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(tmp_path / "r.json", result, PROFILES)
    write_plain_json(result)
    assert capsys.readouterr().out.encode() == (tmp_path / "r.json").read_bytes()
