"""Deltas that somebody forged or damaged: one clear error, bounded memory, no part of a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.deltas import applied, put_together, taken_apart, whole
from wire.codec import to_msgpack
from wire.delta import layout
from wire.delta.decode import decode, read_header
from wire.delta.encode import encode
from wire.delta.zstd import compress, compress_after
from wire.errors import DeltaError

RANDOM = np.random.default_rng(3)
OLD = RANDOM.standard_normal(500).astype("<f4").tobytes() + b"some text of the old file " * 40
NEW = (
    (np.frombuffer(OLD[:2000], "<f4") * np.float32(1.001)).astype("<f4").tobytes()
    + b"some other text, " * 40
    + OLD[-600:]
)
DELTA = encode(OLD, NEW, old_places=whole(OLD[:2000], "f4"), new_places=whole(NEW[:2000], "f4"))
STREAMS, SEGMENTS = 4, 5


def test_the_delta_that_is_damaged_here_uses_several_ways() -> None:
    header, _ = taken_apart(DELTA)
    assert len({segment[0] for segment in header[SEGMENTS]}) >= 3
    assert applied(OLD, DELTA) == NEW


def outcome(delta: bytes) -> bytes | None:
    """Return what a delta makes, or None when it is refused as it should be."""
    try:
        return applied(OLD, delta, limit_bytes=len(NEW))
    except DeltaError:
        return None


@given(st.data())
@settings(max_examples=120)
def test_a_damaged_delta_makes_the_right_file_or_none(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(DELTA)))
    end = data.draw(st.integers(place, min(len(DELTA), place + 20)))
    delta = DELTA[:place] + data.draw(st.binary(max_size=20)) + DELTA[end:]
    assert outcome(delta) in {None, NEW}


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(content: bytes) -> None:
    assert outcome(content) is None
    assert outcome(layout.MAGIC + content) is None


EXTREMES = (-3, -1, 0, 1, 3, 2**31, 2**32 - 1, 2**34, 2**34 + 1, 2**63 - 1, -(2**63))


@given(st.data())
@settings(max_examples=120)
def test_a_header_that_says_something_else_makes_the_right_file_or_none(
    data: st.DataObject,
) -> None:
    header, payload = taken_apart(DELTA)
    segments = header[SEGMENTS]
    for _ in range(data.draw(st.integers(1, 3))):
        rows = [header, header[STREAMS], *segments]
        spots = [(row, n) for row in rows for n in range(len(row)) if isinstance(row[n], int)]
        row, number = data.draw(st.sampled_from(spots))
        if abs(row[number]) < 2**40:
            near = st.integers(-5, 5).map(row[number].__add__)
            row[number] = data.draw(st.one_of(st.sampled_from(EXTREMES), near))
        if data.draw(st.booleans()):
            segments.insert(0, list(data.draw(st.sampled_from(segments))))
    assert outcome(put_together(header, payload)) in {None, NEW}


def header_of(segments: list[list[Any]], payload: list[bytes], new_size: int) -> list[Any]:
    """Return the header of a forged delta over OLD whose digests are right."""
    sizes = [len(part) for part in payload[: layout.STREAMS]]
    return [len(OLD), hashlib.sha256(OLD).digest(), new_size, bytes(32), sizes, segments]


def forged(
    segments: list[list[Any]], streams: dict[int, bytes], new_size: int, after: bytes = b""
) -> bytes:
    parts = [streams.get(number, b"") for number in range(layout.STREAMS)]
    return put_together(header_of(segments, parts, new_size), b"".join(parts) + after)


@pytest.mark.parametrize(
    ("segments", "new_size"),
    [
        ([[0, len(OLD) + 1, 0]], len(OLD) + 1),
        ([[0, 10, -1]], 10),
        ([[0, 10, len(OLD) - 9]], 10),
        ([[1, 10, 0, "f4"]], 10),
        ([[1, 8, 0, "f3"]], 8),
        ([[0, 0, 0], [0, 10, 0]], 10),
        ([[4, 10, 0]], 10),
        ([[0, 10, 0, 0]], 10),
        ([[0, 10, 0]], 11),
        ([[2, 2**34 + 1]], 2**34 + 1),
        ([[3, 2**20 + 1, 0, 0, 5]], 2**20 + 1),
        ([[3, 10, 0, layout.MAX_PREFIX_BYTES + 1, 5]], 10),
        ([[0, 1, 0]] * (layout.MAX_SEGMENTS + 1), layout.MAX_SEGMENTS + 1),
    ],
    ids=[
        "copy too long", "copy before the file", "copy over the end", "half a number",
        "unknown element", "empty segment", "unknown segment", "too many fields", "sizes differ",
        "file too large", "patch too large", "prefix too large", "too many segments",
    ],
)  # fmt: skip
def test_a_segment_out_of_bounds_is_refused(segments: list[list[Any]], new_size: int) -> None:
    with pytest.raises(DeltaError):
        applied(OLD, forged(segments, {}, new_size), limit_bytes=2**40)


def test_many_small_patches_cannot_read_the_old_file_for_hours() -> None:
    old_size = 2**30
    header = layout.Header(
        old_size_bytes=old_size,
        old_sha256=bytes(32),
        new_size_bytes=1,
        new_sha256=bytes(32),
        streams=(0,) * layout.STREAMS,
        segments=(layout.Patch(length=1, skip=0, prefix=layout.prefix_limit(1) + 1, packed=9),),
    )
    with pytest.raises(DeltaError, match="more old bytes than are allowed"):
        layout.header_from_bytes(to_msgpack(header), payload_bytes=9, limit_bytes=100)


def test_a_decompression_bomb_is_refused() -> None:
    bomb = compress(bytes(64 * 1024**2))
    assert len(bomb) < 10_000
    with pytest.raises(DeltaError, match="holds more than its segments use"):
        applied(OLD, forged([[2, 100]], {layout.LITERALS: bomb}, 100))
    with pytest.raises(DeltaError, match="holds more than its segments use"):
        applied(OLD, forged([[3, 100, 0, 8, len(bomb)]], {}, 100, after=bomb))
    prelude = layout.PRELUDE.pack(layout.MAGIC, layout.VERSION, len(bomb), 100)
    with pytest.raises(DeltaError, match="holds more than its segments use"):
        applied(OLD, prelude + bomb)


def test_a_new_file_over_the_limit_is_refused_before_it_is_written() -> None:
    with pytest.raises(DeltaError, match="over the limit of 10"):
        applied(OLD, DELTA, limit_bytes=10)


def test_a_frame_that_needs_a_larger_window_is_refused() -> None:
    wide = compress_after(b"", RANDOM.bytes(3 * 1024**2))
    with pytest.raises(DeltaError, match="damaged"):
        applied(OLD, forged([[2, 3 * 1024**2]], {layout.LITERALS: wide}, 3 * 1024**2))


def test_a_stream_that_ends_early_or_is_missing_is_refused() -> None:
    short = compress(b"short")
    with pytest.raises(DeltaError, match="holds less"):
        applied(OLD, forged([[2, 100]], {layout.LITERALS: short}, 100))
    with pytest.raises(DeltaError, match="is missing"):
        applied(OLD, forged([[2, 100]], {}, 100))
    with pytest.raises(DeltaError, match="cut off"):
        applied(OLD, forged([[2, 100]], {layout.LITERALS: short[:-2]}, 100))
    with pytest.raises(DeltaError, match="after its end"):
        applied(OLD, forged([[2, 5]], {layout.LITERALS: short + b"x"}, 5))


@pytest.mark.parametrize(
    ("count", "gaps", "planes"),
    [(5, b"\x00" * 5, b"\x01" * 5), (1, b"\x04", b"\x01"), (2, b"\xff\x00", b"\x01")],
    ids=["more bytes than numbers", "outside", "outside after an escape"],
)
def test_a_plane_that_does_not_fit_is_refused(count: int, gaps: bytes, planes: bytes) -> None:
    streams = {
        layout.COUNTS: compress(count.to_bytes(4, "little")),
        layout.GAPS: compress(gaps),
        layout.PLANE: compress(planes),
    }
    with pytest.raises(DeltaError, match="a plane of the delta"):
        applied(OLD, forged([[1, 4, 0, "i1"]], streams, 4))


def test_another_version_and_other_files_say_what_they_are() -> None:
    later = layout.PRELUDE.pack(layout.MAGIC, 2, 10, 10) + bytes(10)
    with pytest.raises(DeltaError, match="version 2, and only version 1 is known; update"):
        applied(OLD, later)
    with pytest.raises(DeltaError, match="this is not a delta"):
        applied(OLD, b"PK\x03\x04" + bytes(100))
    huge = layout.PRELUDE.pack(layout.MAGIC, 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(DeltaError, match="out of bounds"):
        applied(OLD, huge)


def test_a_file_that_was_there_stays_until_the_new_one_is_right(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD)
    (tmp_path / "new").write_bytes(b"before")
    (tmp_path / "delta").write_bytes(DELTA[:-1])
    with pytest.raises(DeltaError):
        decode(tmp_path / "old", tmp_path / "delta", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == b"before"
    (tmp_path / "delta").write_bytes(DELTA)
    decode(tmp_path / "old", tmp_path / "delta", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == NEW
    decode(tmp_path / "old", tmp_path / "delta", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == NEW


def test_a_link_or_a_pipe_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD)
    (tmp_path / "delta").write_bytes(DELTA)
    (tmp_path / "precious").write_bytes(b"keep")
    (tmp_path / ".new.new").symlink_to(tmp_path / "precious")
    decode(tmp_path / "old", tmp_path / "delta", tmp_path / "new")
    assert (tmp_path / "precious").read_bytes() == b"keep"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a file"):
        decode(tmp_path / "old", tmp_path / "pipe", tmp_path / "new")


def test_the_header_says_what_a_delta_is_made_from(tmp_path: Path) -> None:
    (tmp_path / "delta").write_bytes(DELTA)
    header = read_header(tmp_path / "delta")
    assert (header.old_size_bytes, header.new_size_bytes) == (len(OLD), len(NEW))
