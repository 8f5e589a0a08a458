"""The benchmark of large fleets does all of its work, on a small one.

With fewer devices than the rules of `benchmarks.scale.fleet` need some work has nothing to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale.fleet import fill
from benchmarks.scale_rows import ALL_WORK, Sqlite, Work, costs

DEVICES = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fleets")
    fill(Sqlite(made).make("small"), made / "blobs", DEVICES)
    return made


@pytest.mark.parametrize("work", ALL_WORK, ids=lambda work: work.name)
def test_each_piece_of_work_is_done_and_counted(folder: Path, work: Work) -> None:
    for cost in costs(Sqlite(folder), "small", folder / "blobs", work):
        assert cost.statements > 0
        assert 0 <= cost.locked_ms <= cost.wall_ms
