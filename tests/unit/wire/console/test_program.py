"""How programs end: each fault is one line and a status, whatever is wrong with their streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import ROOT
from tests.simulators.patience import PATIENCE_S
from wire.console.program import FAULT, fault, run_program

FLEET = f"{sys.executable} -P -m controller"
AGENT = f"{sys.executable} -P -m agent"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=ROOT, capture_output=True, text=True, errors="replace", check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, timeout=PATIENCE_S,
    )  # fmt: skip


@pytest.mark.parametrize("line", [f"{FLEET} --version", f"{FLEET} profile list", f"{AGENT} -h"])
def test_a_closed_output_is_no_fault(line: str) -> None:
    done = shell(f"{line} >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fleet", f"{FLEET} profile list"),
        ("fleet", f"{FLEET} --help"),
        ("fleet-agent", f"{AGENT} --help"),
        ("fleet-agent", f"{AGENT} replay hot-afternoon --json"),
        ("fleet-agent", f"{AGENT} completion bash"),
    ],
)
def test_a_full_output_is_one_line(name: str, line: str) -> None:
    done = shell(f"{line} >/dev/full")
    assert done.returncode == FAULT
    assert done.stderr == f"{name}: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("more", ["", " --json"])
def test_a_reader_that_has_gone_is_no_fault(more: str) -> None:
    done = shell(f"{FLEET} profile list{more} | true")
    assert done.returncode in {0, 141}  # 0 when all was written before the reader had gone
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["device show", "policy show", "package show"])
def test_bytes_that_are_no_text_are_one_line(words: str) -> None:
    done = shell(f"{FLEET} {words} $'\\xff'")
    assert done.returncode == FAULT
    assert done.stderr == "fleet: an argument is not UTF-8 text; write it in UTF-8\n"


def test_a_fault_has_no_line_break_and_no_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert fault("fleet", "no \x1b[31mred\a\nand one line") == FAULT
    assert capsys.readouterr().err == "fleet: no \ufffd[31mred\ufffd and one line\n"


def test_a_fault_of_the_system_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_arguments: list[str]) -> int:
        (tmp_path / "missing").read_bytes()
        return 0

    assert run_program("fleet", work, []) == FAULT
    told = capsys.readouterr().err
    assert told == f"fleet: {tmp_path}/missing: No such file or directory\n"


def test_an_encoding_that_lacks_a_character_is_one_line() -> None:
    code = "from wire.console.program import run_program as r; r('x', lambda _: print('\\xe9'), [])"
    done = shell(f'PYTHONIOENCODING=ascii {sys.executable} -P -c "{code}"')
    assert (done.stdout, done.stderr) == (
        "", "x: the output's encoding ascii lacks '\\xe9'; set PYTHONIOENCODING=utf-8\n",
    )  # fmt: skip
