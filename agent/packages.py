"""A package on this device: its signed index, its manifest, and whether its files are intact.

Rules:
- No part of a package is trusted before its index's signature and digest have been checked.
- A file is opened without following links, below the package's own directory, and hashed whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from agent.errors import StorageError, storage_faults
from wire.errors import IntegrityError
from wire.package.index import (
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import MANIFEST_FILE, Manifest, Variant, manifest_from_bytes
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust

READ_BYTES = 1024 * 1024


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package with a checked index and manifest; its other files may be missing."""

    digest: str
    directory: Path
    index: PackageIndex
    manifest: Manifest

    @property
    def release(self) -> str:
        """Name and version, for people."""
        return f"{self.index.name}:{self.index.version}"

    def files(self, variants: Iterable[Variant]) -> tuple[FileEntry, ...]:
        """Return the entries of the files that some variants need."""
        return self.index.files_for(tuple(variants))

    def verify(self, variants: Iterable[Variant]) -> None:
        """Hash every file that some variants need.

        Args:
            variants: Variants of this package.

        Raises:
            IntegrityError: A file is missing, is a link, or differs from what was signed.
            StorageError: A file cannot be read.
        """
        for entry in self.files(variants):
            if not is_intact(self.directory, entry):
                raise IntegrityError(
                    f"{entry.path} of {self.release} differs from the signed file",
                    remedy="the agent fetches what is damaged from the controller",
                )


class Damage:
    """What was found damaged among the packages of this device. For any thread."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def verify(self, package: Package, variants: Iterable[Variant]) -> None:
        """Hash every file that some variants need, and remember what is wrong.

        Args:
            package: The package.
            variants: Variants of this package.

        Raises:
            IntegrityError: A file is missing, is a link, or differs from what was signed.
            StorageError: A file cannot be read.
        """
        try:
            package.verify(variants)
        except (IntegrityError, StorageError) as exc:
            self._found[package.digest] = exc.message
            raise

    def of(self, digest: str) -> str | None:
        """Return what is wrong with a package; None if nothing is known."""
        return self._found.get(digest)

    def forget(self, digest: str) -> None:
        """Forget the damage of a package, because it has been repaired."""
        self._found.pop(digest, None)


def read_index(directory: Path, digest: str, trust: Trust) -> PackageIndex:
    """Read and check the signed index of a package.

    Args:
        directory: Directory of the package.
        digest: The expected digest of the package.
        trust: The keys that may sign packages.

    Returns:
        The index.

    Raises:
        IntegrityError: The index is of another package, or is missing.
        SignatureError: It has no valid signature.
        WireFormatError: It is malformed.
        StorageError: It cannot be read.
    """
    data = _read_bounded(directory, ENVELOPE_FILE, MAX_ENVELOPE_BYTES)
    index = index_from_bytes(trust.unseal(data, role="release", payload_type=PAYLOAD_TYPE))
    if index.digest != digest:
        raise IntegrityError(f"the envelope belongs to package {index.digest}, not to {digest}")
    return index


def open_package(directory: Path, digest: str, trust: Trust) -> Package:
    """Read and check the index and the manifest of a package.

    Args:
        directory: Directory of the package.
        digest: The expected digest of the package.
        trust: The keys that may sign packages.

    Returns:
        The package; its other files are not read.

    Raises:
        IntegrityError: The index or the manifest is missing or differs from what was signed.
        SignatureError: The index has no valid signature.
        WireFormatError: One of them is malformed.
        StorageError: One of them cannot be read.
    """
    index = read_index(directory, digest, trust)
    entry = index.file(MANIFEST_FILE)
    data = _read_bounded(directory, MANIFEST_FILE, entry.size_bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise IntegrityError(
            f"{MANIFEST_FILE} of {index.name}:{index.version} differs from the signed file"
        )
    manifest = manifest_from_bytes(data)
    if (manifest.name, manifest.version) != (index.name, index.version):
        raise IntegrityError(
            f"the index of {index.name}:{index.version} contains the manifest of "
            f"{manifest.name}:{manifest.version}"
        )
    return Package(digest=digest, directory=directory, index=index, manifest=manifest)


def is_intact(directory: Path, entry: FileEntry) -> bool:
    """Tell whether a file is there and equals what was signed.

    Args:
        directory: Directory of the package.
        entry: The file's entry in the index.

    Returns:
        False also for a link, wherever it points.

    Raises:
        StorageError: The file is there and cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with (
            storage_faults(f"cannot read {entry.path}"),
            open_inside(directory, entry.path) as file,
        ):
            if os.fstat(file.fileno()).st_size != entry.size_bytes:
                return False
            while block := file.read(READ_BYTES):
                digest.update(block)
    except IntegrityError:
        return False
    return digest.hexdigest() == entry.sha256


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


def _read_bounded(directory: Path, path: str, limit_bytes: int) -> bytes:
    with storage_faults(f"cannot read {path}"), open_inside(directory, path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise IntegrityError(f"{path} is longer than {limit_bytes} bytes")
    return data
