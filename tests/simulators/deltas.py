"""Deltas for tests: made in memory, applied to files, and taken apart to be damaged."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from wire.delta import formats, layout, numpy_steps, python_steps
from wire.delta.decode import Steps, decode
from wire.delta.encode import encode
from wire.delta.places import Place
from wire.delta.zstd import Unpacker, compress

ARITHMETIC: dict[str, Steps] = {"numpy": numpy_steps, "python": python_steps}


def applied(
    old: bytes, delta: bytes, *, steps: Steps | None = None, limit_bytes: int = 2**30
) -> bytes:
    """Return what a delta makes of an old file."""
    with tempfile.TemporaryDirectory(prefix="delta-") as folder:
        here = Path(folder)
        (here / "old").write_bytes(old)
        (here / "delta").write_bytes(delta)
        try:
            decode(here / "old", here / "delta", here / "new", limit_bytes=limit_bytes, steps=steps)
            return (here / "new").read_bytes()
        finally:
            left = {path.name for path in here.iterdir()} - {"old", "delta", "new"}
            assert not left, "a part of the new file was left"


def of_files(
    name: str,
    old: bytes,
    new: bytes,
    *,
    beside_old: dict[str, bytes] | None = None,
    beside_new: dict[str, bytes] | None = None,
) -> bytes:
    """Make a delta of two files of that name, and of what lies beside them."""
    return encode(
        old,
        new,
        old_places=formats.places(name, old, beside_old),
        new_places=formats.places(name, new, beside_new),
    )


def whole(content: bytes, element: layout.Element, name: str = "w") -> list[Place]:
    """Return a file that is one tensor."""
    return [Place(name, element, (len(content),), 0, len(content))]


def taken_apart(delta: bytes) -> tuple[list[Any], bytes]:
    """Return a delta's header as lists and numbers, and what follows it."""
    packed, size = layout.header_sizes(delta[: layout.PRELUDE.size])
    start = layout.PRELUDE.size
    pieces = iter((delta[start : start + packed],))
    header = msgspec.msgpack.decode(Unpacker(lambda: next(pieces, b"")).read(size))
    return header, delta[start + packed :]


def put_together(header: list[Any], payload: bytes) -> bytes:
    """Make a delta of a header that may say anything."""
    plain = msgspec.msgpack.encode(header)
    packed = compress(plain)
    prelude = layout.PRELUDE.pack(layout.MAGIC, layout.VERSION, len(packed), len(plain))
    return prelude + packed + payload
