"""Single parts of an install, to be recorded: `... part_story PART FOLDER`.

What must last from now on is said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.install.fetch.part import SYNC_MOST_S, Blob, Part
from agent.install.slots import Slots
from agent.install.store import STATE_FILE, FileStateStore
from tests.crash_states.recording import say
from tests.simulators.clock import FakeClock
from wire.codec import sha256_hex
from wire.files import write_atomic

OLD, NEW, NONE = "1" * 64, "2" * 64, "None"
CHUNK_BYTES: Final = 2048
CHUNKS: Final = tuple(bytes([number]) * CHUNK_BYTES for number in (1, 2, 3))
BLOB: Final = Blob(
    sha256=sha256_hex(b"".join(CHUNKS)),
    size_bytes=CHUNK_BYTES * len(CHUNKS),
    chunk_bytes=CHUNK_BYTES,
    chunks=tuple(sha256_hex(chunk) for chunk in CHUNKS),
)


class Cut(BaseException):
    """The power is gone."""


def part_in(root: Path, clock: FakeClock) -> Part:
    """Return what came of the blob."""
    return Part(BLOB, root / "parts" / BLOB.sha256, clock)


def fetch(root: Path) -> None:
    """Keep two of three chunks, and say how many bytes must be there from then on."""
    clock = FakeClock()
    with part_in(root, clock) as part:
        for number, chunk in enumerate(CHUNKS[:2]):
            clock.advance(SYNC_MOST_S)
            part.keep(number, chunk)
            say(str((number + 1) * CHUNK_BYTES))


def switch(root: Path) -> None:
    """Switch the link of a model, remove it, and say what it names from then on."""
    slot = Slots(root).of("digits")
    slot.switch(NEW)
    say(NEW)
    slot.clear()
    say(NONE)


def mend(root: Path) -> None:
    """Start with records of which a power cut has left one old."""
    FileStateStore(root)


def leave_one_old(root: Path) -> None:
    """Lose the power between a record and its copy."""

    def write(path: Path, content: bytes) -> None:
        if path.name == STATE_FILE:
            raise Cut
        write_atomic(path, content)

    FileStateStore(root).accept(1, b"one")
    try:
        FileStateStore(root, write=write).accept(2, b"two")
    except Cut:
        return
    raise RuntimeError("the record is written last")


PARTS: Final[dict[str, Callable[[Path], None]]] = {"fetch": fetch, "switch": switch, "mend": mend}

if __name__ == "__main__":
    PARTS[sys.argv[1]](Path(sys.argv[2]))
