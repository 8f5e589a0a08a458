"""How long an install waits for deltas that are being made."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.install.fetch.delta import (
    WAIT_BYTES_PER_S,
    WAIT_LEAST_S,
    WAIT_MOST_S,
    DeltaSource,
)
from agent.install.fetch.part import Blob, Part
from agent.install.fetch.sources import Errand
from tests.simulators.clock import FakeClock
from wire.delivery import BlobSources

pytest.importorskip("zstandard", reason="without Zstandard a device has no deltas")
IN_S = 1.0


class Making:
    """Says of every file that its delta will soon be there, and it never is."""

    def of(self, sha256: str, _errand: Errand) -> BlobSources:
        return BlobSources(sha256=sha256, delta_in_s=IN_S)

    def forget(self, _sha256: str) -> None:
        return None


def waited_s(
    directory: Path, *sizes_bytes: int, installs: int = 1, only_deltas: bool = False
) -> list[float]:
    """Return how long each install waits for files of these sizes."""
    clock, found = FakeClock(), []
    source = DeltaSource(Making(), [], clock)
    for install in range(installs):
        begun_s = clock.monotonic_s()
        for number, size_bytes in enumerate(sizes_bytes):
            blob = Blob(
                sha256=f"{install:032x}{number:032x}",
                size_bytes=size_bytes,
                chunk_bytes=size_bytes,
                chunks=("0" * 64,),
            )
            with Part(blob, directory / blob.sha256, clock, lambda _size: None) as part:
                source.bring(part, Errand(asks=True, only_deltas=lambda: only_deltas))
        source.end()
        found.append(clock.monotonic_s() - begun_s)
    return found


def test_small_files_wait_together_no_longer_than_one(tmp_path: Path) -> None:
    (one,) = waited_s(tmp_path / "one", 64 * 1024)
    (twenty,) = waited_s(tmp_path / "twenty", *[64 * 1024] * 20)
    assert WAIT_LEAST_S - IN_S <= one <= WAIT_LEAST_S
    assert WAIT_LEAST_S - IN_S <= twenty <= WAIT_LEAST_S


def test_large_files_wait_for_as_long_as_they_would_take_on_a_slow_link(tmp_path: Path) -> None:
    (waited,) = waited_s(tmp_path, 10 * WAIT_BYTES_PER_S, 20 * WAIT_BYTES_PER_S)
    assert 30.0 - IN_S <= waited <= 30.0
    (bounded,) = waited_s(tmp_path, *[50 * WAIT_BYTES_PER_S] * 4)
    assert WAIT_MOST_S - IN_S <= bounded <= WAIT_MOST_S


def test_the_next_install_waits_anew(tmp_path: Path) -> None:
    first, second = waited_s(tmp_path, 64 * 1024, 64 * 1024, installs=2)
    assert second == pytest.approx(first)


def test_where_nothing_but_a_delta_may_come_each_file_waits(tmp_path: Path) -> None:
    (waited,) = waited_s(tmp_path, *[64 * 1024] * 3, only_deltas=True)
    assert 3 * (WAIT_LEAST_S - IN_S) <= waited <= 3 * WAIT_LEAST_S
