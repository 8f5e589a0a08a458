"""Reads the manifest of a package's directory, and computes the index of its files."""

from __future__ import annotations

import contextlib
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from packager.errors import PackageError
from wire.codec import MAX_JSON_BYTES
from wire.errors import WireFormatError
from wire.package.index import (
    CHUNK_BYTES,
    ENVELOPE_FILE,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import (
    MANIFEST_FILE,
    Manifest,
    manifest_from_bytes,
)
from wire.package.paths import safe_path

AGAIN: Final = "copy, download or build the package again"


def index_directory(directory: Path) -> PackageIndex:
    """Compute the index of a directory in the package layout.

    Args:
        directory: The package.

    Returns:
        The index of all its files except the envelope.

    Raises:
        PackageError: The manifest is missing or malformed, an entry is not a regular file, or the
            directory holds too much.
        WireFormatError: A path is malformed.
    """
    manifest = read_manifest(directory)
    paths = _plain_files(directory)
    if len(paths) > MAX_FILES or sum((directory / p).stat().st_size for p in paths) > (
        MAX_PACKAGE_BYTES
    ):
        raise PackageError(f"{directory} is over {MAX_FILES} files or {MAX_PACKAGE_BYTES} bytes")
    index = PackageIndex(
        name=manifest.name,
        version=manifest.version,
        files=tuple(_entry(directory, path) for path in paths),
    )
    return index_from_bytes(index.to_bytes())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a package.

    Args:
        directory: The package.

    Raises:
        PackageError: It is missing, too large or malformed.
    """
    try:
        return manifest_from_bytes(_read(directory, MANIFEST_FILE, MAX_JSON_BYTES))
    except WireFormatError as exc:
        raise PackageError(
            f"{directory} is not a package: {MANIFEST_FILE}: {exc.__cause__ or exc}", remedy=AGAIN
        ) from exc


def _plain_files(directory: Path) -> list[str]:
    found: list[str] = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if any("\ud800" <= char <= "\udfff" for char in relative):
            raise PackageError(f"{relative!r} is not a name in UTF-8", remedy=AGAIN)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise PackageError(f"{relative} is neither a plain file nor a directory")
        if path.is_file() and relative != ENVELOPE_FILE:
            found.append(relative)
    return sorted(found)


def _read(directory: Path, path: str, limit_bytes: int) -> bytes:
    with _opened(directory, path, limit_bytes) as file:
        return file.read()


def _entry(directory: Path, path: str) -> FileEntry:
    """Compute the entry of a file without holding it in memory."""
    safe_path(path)
    whole, chunks, size_bytes = hashlib.sha256(), [], 0
    with _opened(directory, path, MAX_PACKAGE_BYTES) as file:
        while chunk := file.read(CHUNK_BYTES):
            whole.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
            size_bytes += len(chunk)
    return FileEntry(
        path=path, size_bytes=size_bytes, sha256=whole.hexdigest(), chunks=tuple(chunks)
    )


@contextlib.contextmanager
def _opened(directory: Path, path: str, limit_bytes: int) -> Iterator[BinaryIO]:
    file = directory / path
    try:
        status = file.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise PackageError(f"{directory}: {path} is not a plain file", remedy=AGAIN)
        if status.st_size > limit_bytes:
            raise PackageError(f"{directory}: {path} is over {limit_bytes} bytes", remedy=AGAIN)
        with file.open("rb") as stream:
            yield stream
    except OSError as exc:
        raise PackageError(
            f"{directory} is not a package: {path}: {exc.strerror}",
            remedy="name the directory that `fleet build -o` wrote",
        ) from exc
