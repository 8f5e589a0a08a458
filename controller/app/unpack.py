"""Unpacks a backup into a directory; see `controller.app.backup` for its form.

Rules:
- Every size and digest is checked before anything of the backup is used. No file of it can be
  written outside of the directory.
- Whatever is wrong with an archive is one `BackupError`, also what `tarfile` does not expect.
- No header of an archive lets it read more at once than the largest index.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Final

from controller.app.backup import (
    DATABASE_NAME,
    FORMAT_VERSION,
    HOME_FOLDER,
    INDEX_NAME,
    MAX_DEPTH,
    READ_BYTES,
    BackupEntry,
    BackupIndex,
)
from controller.app.home import CONFIG_FILE, PUBLIC_FILES
from controller.broker.errors import BackupError, HomeError
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.files import PRIVATE, PUBLIC, open_file

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Some 300,000 files."""

MAX_TIME_S: Final = 253_402_214_400
"""The last day of the year 9999; no calendar goes further."""

PUBLIC_NAMES: Final = frozenset(f"{HOME_FOLDER}/{name}" for name in PUBLIC_FILES)
ANOTHER: Final = "use another backup"
NOT_EXPECTED: Final = (
    tarfile.TarError, ArithmeticError, EOFError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What `tarfile` raises at headers that nobody wrote in good faith."""


def unpack(backup: Path, scratch: Path) -> BackupIndex:
    """Write the files of a backup below a directory, each checked.

    Args:
        backup: The file.
        scratch: The directory; the database and the folder of the other files come into it.

    Returns:
        The index of the backup.

    Raises:
        BackupError: It is no backup, or is damaged.
        HomeError: It is of a newer version.
        OSError: It cannot be read, or its files cannot be written.
    """
    try:
        with (
            _Bounded(open_file(backup).detach()) as stream,
            tarfile.open(fileobj=stream, mode="r:") as archive,
        ):
            index = _index(archive)
            _check_room(index, scratch)
            expected = {entry.path: entry for entry in index.files}
            while (member := archive.next()) is not None:
                entry = expected.pop(member.name, None)
                is_file = member.isreg() and not member.issparse()
                if entry is None or not is_file or member.size != entry.size_bytes:
                    raise BackupError(
                        f"the backup is damaged: {member.name[:200]!r} is not as the index says",
                        remedy=ANOTHER,
                    )
                _extract(archive, member, entry, scratch)
    except NOT_EXPECTED as exc:
        fact = next(iter(str(exc).splitlines()), "") or "its headers cannot be read"
        raise BackupError(f"the backup is damaged: {fact[:200]}", remedy=ANOTHER) from exc
    if expected or not (scratch / DATABASE_NAME).is_file():
        raise BackupError(
            f"the backup is damaged: {next(iter(expected), DATABASE_NAME)!r} is missing",
            remedy=ANOTHER,
        )
    if not (scratch / HOME_FOLDER / CONFIG_FILE).is_file():
        raise BackupError(f"the backup is damaged: {CONFIG_FILE} is missing", remedy=ANOTHER)
    return index


def _index(archive: tarfile.TarFile) -> BackupIndex:
    """Read the index, which is the first member.

    Raises:
        BackupError: There is none, or it is damaged.
        HomeError: It is of a newer version.
    """
    member = archive.next()
    if member is None or member.name != INDEX_NAME or not member.isreg():
        raise BackupError("the file is no backup of a controller", remedy=ANOTHER)
    stream = archive.extractfile(member) if member.size <= MAX_INDEX_BYTES else None
    try:
        content = b"" if stream is None else stream.read()
        index = from_json(content, BackupIndex, limit_bytes=MAX_INDEX_BYTES)
    except WireFormatError as exc:
        raise BackupError(f"the backup is damaged: {exc.message}", remedy=ANOTHER) from exc
    if index.format_version != FORMAT_VERSION:
        raise HomeError(
            f"the backup has the form {index.format_version}, and this program knows "
            f"{FORMAT_VERSION}",
            remedy=f"restore it with version {index.program_version} of this program, or newer",
        )
    if not 0 <= index.made_at_s <= MAX_TIME_S:
        raise BackupError(
            f"the backup is damaged: it was made at {index.made_at_s:g} s", remedy=ANOTHER
        )
    return index


def _check_room(index: BackupIndex, scratch: Path) -> None:
    """Refuse a backup that is larger than the disk; the database is there twice for a time.

    Raises:
        HomeError: It does not fit.
    """
    sizes = {entry.path: max(entry.size_bytes, 0) for entry in index.files}
    needed = sum(sizes.values()) + sizes.get(DATABASE_NAME, 0)
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise HomeError(
            f"the backup needs {needed} bytes, and {free} are free",
            remedy="choose a directory on another disk",
        )


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, entry: BackupEntry, scratch: Path
) -> None:
    """Write one file and check its digest.

    Raises:
        BackupError: It would lie outside, or is damaged.
    """
    name, parts = member.name, PurePosixPath(member.name).parts
    is_inside = name == "/".join(parts) and ".." not in parts and "\0" not in name
    is_inside = is_inside and len(parts) <= MAX_DEPTH
    belongs = name == DATABASE_NAME or (parts[:1] == (HOME_FOLDER,) and len(parts) > 1)
    stream = archive.extractfile(member)
    if stream is None or not (is_inside and belongs):
        raise BackupError(
            f"the backup is damaged: {name[:200]!r} does not belong into it", remedy=ANOTHER
        )
    place = scratch
    for part in parts[:-1]:
        place /= part
        place.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256()
    mode = PUBLIC if name in PUBLIC_NAMES else PRIVATE
    descriptor = os.open(place / parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        while part_of_file := stream.read(READ_BYTES):
            digest.update(part_of_file)
            file.write(part_of_file)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise BackupError(
            f"the backup is damaged: {name[:200]!r} does not match its digest", remedy=ANOTHER
        )


class _Bounded(io.BufferedReader):
    """A file of which no more is read at once than the largest index."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes.

        Raises:
            ReadError: More is asked for, or all: the size is of a header that is not ours.
        """
        if size is None or not 0 <= size <= MAX_INDEX_BYTES:
            raise tarfile.ReadError("a header has an impossible size")
        return super().read(size)
