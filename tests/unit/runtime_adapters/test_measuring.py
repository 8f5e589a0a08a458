"""What the kernel tells of a busy machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime_adapters.measuring import busy_s


def test_all_but_idle_time_is_busy_and_guests_count_once(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    columns = [ticks * n for n in (1, 2, 4, 1000, 1000, 8, 16, 32, 64, 128)]
    stat.write_text(f"cpu  {' '.join(map(str, columns))}\ncpu0 1 1\n")
    assert busy_s(stat) == 1 + 2 + 4 + 8 + 16 + 32


@pytest.mark.parametrize("text", [None, "", "cpu\n", "cpu x y\n"])
def test_what_the_kernel_does_not_tell_is_not_known(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    assert busy_s(stat) is None


def test_this_machine_was_busy_before() -> None:
    assert (busy_s() or 0.0) > 0.0
