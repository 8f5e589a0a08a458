"""A signed package, wherever it is, and what is done with each of its files on the way.

Rules:
- Every file is hashed while it is copied.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from packager.errors import PackageError
from packager.files import read_bounded
from packager.package.directory import open_package
from packager.package.indexing import AGAIN
from wire.errors import SignatureError
from wire.files import PUBLIC, open_file
from wire.package.index import (
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.trust.envelope import MAX_ENVELOPE_BYTES, read_unverified

STEP_BYTES: Final = 1024 * 1024


Parts = Callable[[FileEntry], Iterator[bytes]]
"""Returns the content of a file in parts."""


class Content(NamedTuple):
    """A signed package, wherever it is."""

    envelope: bytes
    parts: Parts


def directory_content(directory: Path) -> Content:
    """Return the content of a signed package on this disk, after checking every file.

    Args:
        directory: The package.

    Returns:
        Its content.

    Raises:
        PackageError: It is not a package, or is not signed.
        FleetError: A file was changed.
    """
    open_package(directory)
    place = directory / ENVELOPE_FILE
    if not place.is_file():
        raise PackageError(
            f"{directory} is not signed",
            remedy=f"sign it with: fleet package sign {directory} --key FILE",
        )

    content = read_bounded(place, MAX_ENVELOPE_BYTES, PackageError)
    return Content(content, directory_parts(directory))


def directory_parts(directory: Path) -> Parts:
    """Return what reads files of a package on this disk.

    Args:
        directory: The package.

    Returns:
        The function; it raises PackageError for a file that cannot be read.
    """

    def parts(entry: FileEntry) -> Iterator[bytes]:
        try:
            with open_file(directory / entry.path) as stream:
                while part := stream.read(STEP_BYTES):
                    yield part
        except OSError as exc:
            raise PackageError(f"{directory}: {entry.path}: {exc.strerror}", remedy=AGAIN) from exc

    return parts


def index_of(envelope: bytes) -> PackageIndex:
    """Return the index in an envelope whose signature is not checked.

    Args:
        envelope: The signed index.

    Returns:
        The index.

    Raises:
        PackageError: It is no envelope around an index.
        WireFormatError: The index is malformed.
    """
    try:
        return index_from_bytes(read_unverified(envelope, payload_type=PAYLOAD_TYPE).payload)
    except SignatureError as exc:
        raise PackageError(f"the package is not signed: {exc.message}", remedy=AGAIN) from exc


def checked(parts: Iterator[bytes], entry: FileEntry) -> Iterator[bytes]:
    """Pass the content of a file on, and refuse it at its end if it is not the signed one.

    Args:
        parts: The content as it comes.
        entry: What was signed.

    Yields:
        The same parts.

    Raises:
        PackageError: It has another size or digest.
    """
    digest, rest = hashlib.sha256(), entry.size_bytes
    for part in parts:
        rest -= len(part)
        digest.update(part)
        if rest < 0:
            break
        yield part
    if rest != 0 or digest.hexdigest() != entry.sha256:
        raise PackageError(f"{entry.path} differs from the signed file", remedy=AGAIN)


def check_room(staging: Path, needed_bytes: int) -> None:
    """Refuse a package that does not fit on the disk.

    Args:
        staging: Where it is to be written.
        needed_bytes: Its size.

    Raises:
        PackageError: There is less room.
    """
    free_bytes = shutil.disk_usage(staging).free
    if needed_bytes > free_bytes:
        raise PackageError(
            f"the package needs {needed_bytes} bytes, and {free_bytes} are free",
            remedy="name a directory on another disk",
        )


def write_file(path: Path, parts: Iterator[bytes]) -> None:
    """Write a new file of a package.

    Args:
        path: The file; its directory is made.
        parts: Its content.

    Raises:
        OSError: It exists, or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, PUBLIC), "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
