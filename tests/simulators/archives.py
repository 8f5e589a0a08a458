"""Package files as `fleet package export` writes them, and hostile ones."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulators.packages import SignedPackage
from wire.codec import sha256_hex
from wire.package.archive import DESIRED_FILE, END, blob_name, header, layout, padding
from wire.package.index import ENVELOPE_FILE


def file_of(made: SignedPackage, *, desired: bytes | None = None) -> bytes:
    """Return a package as one file."""
    return joined(members_of(made, desired=desired))


def members_of(made: SignedPackage, *, desired: bytes | None = None) -> list[tuple[str, bytes]]:
    """Return the files in it, each with its name, in their order."""
    contents = {sha256_hex(content): content for content in made.files.values()}
    found = [(ENVELOPE_FILE, made.envelope)]
    if desired is not None:
        found.append((DESIRED_FILE, desired))
    wanted = layout(made.index, made.files)
    return found + [(blob_name(sha256), contents[sha256]) for sha256, _ in wanted]


def joined(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an archive of files, whatever they are."""
    return (
        b"".join(
            header(name, len(content)) + content + padding(len(content))
            for name, content in members
        )
        + END
    )


class Held:
    """A file in memory, as the agent reads one of an operator."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        data = self.content[offset : offset + length]
        assert len(data) == length, "nobody reads behind the end"
        return data
