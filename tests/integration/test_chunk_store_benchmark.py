"""The benchmark's casync sends what differs, and the figure counts it."""

from __future__ import annotations

import random

import pytest

from benchmarks.versions import chunk_store

SIZE_BYTES = 2_000_000
OLD = random.Random(1).randbytes(SIZE_BYTES)
OTHER = random.Random(2).randbytes(SIZE_BYTES)

pytestmark = pytest.mark.skipif(not chunk_store.is_installed(), reason="casync is not installed")


def test_nothing_in_common_costs_the_whole_file() -> None:
    assert SIZE_BYTES < chunk_store.sent_bytes(OLD, OTHER) < 1.05 * SIZE_BYTES


def test_a_changed_piece_costs_its_chunks_and_the_index() -> None:
    new = OLD[:1_000_000] + b"changed" + OLD[1_000_000:]
    equal_bytes, changed_bytes = (chunk_store.sent_bytes(OLD, file) for file in (OLD, new))
    assert 0 < equal_bytes < SIZE_BYTES / 100
    assert equal_bytes < changed_bytes < SIZE_BYTES / 4
