"""Files of a package on the disk: opened without following links, and hashed whole.

Rules:
- A file is reached only below the package's own directory, and never through a link.
- Workers use this too, so nothing here knows keys or signatures.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from agent.errors import storage_faults
from wire.errors import IntegrityError

READ_BYTES = 1024 * 1024


class SignedFile(Protocol):
    """What a signed index says of a file."""

    @property
    def path(self) -> str:
        """Relative path in the package."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def sha256(self) -> str:
        """SHA-256 of its content."""
        ...


def is_intact(directory: Path, entry: SignedFile) -> bool:
    """Tell whether a file is there and equals what was signed.

    Args:
        directory: Directory of the package.
        entry: What was signed.

    Returns:
        False also for a link, wherever it points.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    try:
        with (
            storage_faults(f"cannot read {entry.path}"),
            open_inside(directory, entry.path) as file,
        ):
            if os.fstat(file.fileno()).st_size != entry.size_bytes:
                return False
            return sha256_of(file) == entry.sha256
    except IntegrityError:
        return False


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of an open file, from where it stands to its end.

    Args:
        file: The file.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.sha256()
    while block := file.read(READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def open_inside(directory: Path, path: str) -> Iterator[BinaryIO]:
    """Open a regular file below a directory without following links.

    Args:
        directory: The directory that the file must be in.
        path: Relative path, as in a package index.

    Yields:
        The file, open for reading.

    Raises:
        IntegrityError: It is missing, not a regular file, or reached through a link.
        OSError: It cannot be read.
    """
    refuse_links(directory, path)
    # Without O_NONBLOCK the agent would wait for ever on a pipe in place of the file.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(directory / path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise IntegrityError(f"the file {path} is missing from the package") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IntegrityError(f"{path} is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def refuse_links(directory: Path, path: str) -> None:
    """Check that a path leads to a place below a directory without a link on the way.

    Args:
        directory: The directory that the path must stay in.
        path: Relative path, as in a package index.

    Raises:
        IntegrityError: It leaves the directory, or a part of it is a link.
    """
    place = directory
    for part in path.split("/"):
        place /= part
        if part in {"", ".", ".."} or place.is_symlink():
            raise IntegrityError(f"{path} points outside its package")


def clear_way(directory: Path, path: str) -> None:
    """Remove what stands in the way of a file below a directory: links, and things of another kind.

    Args:
        directory: The directory.
        path: Relative path of the file, as in a package index.

    Raises:
        StorageError: It cannot be removed.
    """
    place = directory
    *folders, file = path.split("/")
    with storage_faults(f"cannot remove what is in the way of {path}"):
        for folder in folders:
            place /= folder
            keep_directory(place)
        place /= file
        if place.is_symlink():
            place.unlink()
        elif place.is_dir():
            shutil.rmtree(place)


def keep_directory(path: Path) -> None:
    """Remove what stands where a directory must be; a directory stays. Raises OSError."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        path.unlink()
