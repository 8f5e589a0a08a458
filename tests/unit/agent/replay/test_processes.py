"""What the processors did, and which part was the workers': from the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.replay.processes import PAGE_BYTES, TICKS_PER_S, read_descendants, read_processor

PROC = Path("/proc")
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
CHILD = (
    "x = bytearray(32 * 2**20)\nfor _ in range(10**6): pass\nprint('ready', flush=True); input()"
)


def process(procfs: Path, pid: int, parent: int, *, ticks: int = 0, name: str = "x") -> None:
    directory = procfs / str(pid)
    directory.mkdir()
    numbers = [parent, 0, 0, 0, 0, 0, 0, 0, 0, 0, ticks, ticks, 0, 0]
    (directory / "stat").write_text(f"{pid} ({name}) S {' '.join(map(str, numbers))}\n")
    (directory / "statm").write_text("900 30 10 1 0 5 0\n")


def test_busy_is_what_is_neither_idle_nor_waiting_and_guests_count_once(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(
        "cpu  100 20 30 9999 8888 5 6 7 100 50\ncpu0 1 1\ncpu1 1 1\nintr 99 0 0\n"
    )
    processor = read_processor(tmp_path)
    assert processor is not None
    assert processor.busy_s == pytest.approx((100 + 20 + 30 + 5 + 6 + 7) / TICKS_PER_S / 2)
    assert processor.cores == 2


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2 x 4 5 6 7 8", "intr 1\n", "cpu 1 2 3\n"])
def test_a_file_that_is_not_understood_is_unknown(tmp_path: Path, text: str) -> None:
    assert read_processor(tmp_path) is None
    (tmp_path / "stat").write_text(text)
    assert read_processor(tmp_path) is None


def test_descendants_are_found_whatever_their_numbers_and_names(tmp_path: Path) -> None:
    process(tmp_path, 50, 1)
    process(tmp_path, 60, 50, ticks=100)
    process(tmp_path, 7, 60, ticks=200, name="a) S 50 (b")
    process(tmp_path, 8, 1, ticks=999)
    (tmp_path / "61").mkdir()
    (tmp_path / "61/stat").write_text("nonsense")
    spent = read_descendants(tmp_path, 50)
    assert spent.processor_s == {60: 200 / TICKS_PER_S, 7: 400 / TICKS_PER_S}
    assert spent.held_bytes == 2 * 20 * PAGE_BYTES


def test_where_there_is_no_procfs_there_is_nothing(tmp_path: Path) -> None:
    assert read_descendants(tmp_path / "none", 1) == ({}, 0)


def test_a_real_child_and_its_child_are_counted() -> None:
    before = read_processor(PROC)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(child=CHILD)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        spent = read_descendants(PROC, os.getpid())
        assert parent.pid in spent.processor_s
        below = read_descendants(PROC, parent.pid)
        assert len(below.processor_s) == 1
        assert below.held_bytes >= 32 * 2**20
        assert sum(below.processor_s.values()) > 0.0
    finally:
        parent.communicate("\n")
    after = read_processor(PROC)
    assert before is not None
    assert after is not None
    assert after.busy_s > before.busy_s
