"""Writes a signed package into one file that is carried by hand, and reads it back.

`wire.package.archive` has the form of the file.

Rules:
- Equal input gives equal bytes.
- Every file is hashed while it is copied, in both directions; nothing is left of a copy that fails.
- A file that holds only some variants is for devices; it is no whole package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from packager.errors import PackageError
from packager.package.content import (
    STEP_BYTES,
    Content,
    Parts,
    check_room,
    checked,
    index_of,
    write_file,
)
from packager.package.indexing import AGAIN
from packager.package.staging import staged
from wire.codec import MAX_JSON_BYTES
from wire.files import (
    PRIVATE,
    PUBLIC,
    open_file,
    opened_alone,
    read_part,
    sync_directory,
    temporary_of,
)
from wire.package.archive import (
    DESIRED_FILE,
    END,
    METADATA_FILE,
    Archive,
    blob_name,
    header,
    layout,
    open_archive,
    padding,
)
from wire.package.index import ENVELOPE_FILE, FileEntry, PackageIndex
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.profile import DeviceProfile
from wire.trust.root import Trust

WHOLE: Final = "export it without --profile"


class Exported(NamedTuple):
    """What was written."""

    release: str
    variants: tuple[str, ...]
    size_bytes: int
    sha256: str
    """Digest of the whole file."""


def export(
    content: Content,
    to: Path,
    *,
    profiles: Collection[DeviceProfile] = (),
    desired: bytes | None = None,
    metadata: bytes | None = None,
) -> Exported:
    """Write a package into one file.

    Args:
        content: The package.
        to: The file; it must not exist.
        profiles: Only the variants that fit one of these; empty for all.
        desired: The signed desired state of one device, to go with it.
        metadata: The fleet's trusted metadata, to go before it.

    Returns:
        What was written.

    Raises:
        PackageError: No variant fits a profile, the content is not as signed, or the file cannot be
            written.
        WireFormatError: The index or the manifest is malformed, or a file is too large.
    """
    index = index_of(content.envelope)
    manifest = _manifest(content, index)
    variants = manifest.variants
    entries = index.files
    if profiles:
        names = {name for profile in profiles for name in _fitting(manifest, profile)}
        variants = tuple(v for v in manifest.variants if v.name in names)
        entries = index.files_for(variants)
    by_digest = {entry.sha256: entry for entry in entries}
    with _new_file(to) as file:
        hashed = _Hashed(file)
        if metadata is not None:
            hashed.add(METADATA_FILE, len(metadata), iter((metadata,)))
        hashed.add(ENVELOPE_FILE, len(content.envelope), iter((content.envelope,)))
        if desired is not None:
            hashed.add(DESIRED_FILE, len(desired), iter((desired,)))
        for sha256, size_bytes in layout(index, [entry.path for entry in entries]):
            parts = checked(content.parts(by_digest[sha256]), by_digest[sha256])
            hashed.add(blob_name(sha256), size_bytes, parts)
        hashed.write(END)
    return Exported(
        release=f"{index.name}:{index.version}",
        variants=tuple(variant.name for variant in variants),
        size_bytes=hashed.size_bytes,
        sha256=hashed.digest.hexdigest(),
    )


def unpack(file: Path, output: Path, trust: Trust, *, force: bool = False) -> PackageIndex:
    """Write the package of a file as a directory, after checking the signature and every file.

    Args:
        file: What `export` wrote.
        output: The directory to make.
        trust: The keys that may sign packages.
        force: Replace an existing package.

    Returns:
        The index of the package.

    Raises:
        PackageError: The file cannot be read or holds only a part of the package, or the output
            cannot be written.
        FleetError: It is no package, is not signed by the release role, or is damaged.
    """
    with _archive(file, trust) as (archive, parts):
        _check_whole(file, archive)
        with staged(output, force=force) as staging:
            check_room(staging, archive.index.size_bytes)
            write_file(staging / ENVELOPE_FILE, iter((archive.envelope,)))
            for entry in archive.index.files:
                write_file(staging / entry.path, checked(parts(entry), entry))
    return archive.index


@contextlib.contextmanager
def archive_content(file: Path, trust: Trust) -> Iterator[Content]:
    """Open the package of a file, after checking its signature, while the `with` block lasts.

    Args:
        file: What `export` wrote, for all devices or for some.
        trust: The keys that may sign packages.

    Yields:
        Its content.

    Raises:
        PackageError: The file cannot be read.
        FleetError: It is no package, is not signed by the release role, or is damaged.
    """
    with _archive(file, trust) as (archive, parts):
        yield Content(archive.envelope, parts)


@contextlib.contextmanager
def _archive(file: Path, trust: Trust) -> Iterator[tuple[Archive, Parts]]:
    """Open an archive, and return what reads its files.

    Raises:
        PackageError: The file cannot be read, or does not hold a file that is asked for.
    """
    with _opened(file) as (descriptor, size_bytes):

        def read(offset: int, length: int) -> bytes:
            try:
                return read_part(descriptor, offset, length)
            except OSError as exc:
                raise PackageError(f"{file} cannot be read: {exc.strerror}") from exc

        archive = open_archive(read, size_bytes, trust)

        def parts(entry: FileEntry) -> Iterator[bytes]:
            member = archive.blobs.get(entry.sha256)
            if member is None:
                raise PackageError(
                    f"{file} holds only a part of the package: it lacks {entry.path}",
                    remedy=WHOLE,
                )
            stop = member.offset + member.size_bytes
            for at in range(member.offset, stop, STEP_BYTES):
                yield read(at, min(STEP_BYTES, stop - at))

        yield archive, parts


class _Hashed:
    """An archive that is being written, with its size and digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size_bytes += len(data)

    def add(self, name: str, size_bytes: int, parts: Iterator[bytes]) -> None:
        """Write one file."""
        self.write(header(name, size_bytes))
        for part in parts:
            self.write(part)
        self.write(padding(size_bytes))


def _manifest(content: Content, index: PackageIndex) -> Manifest:
    entry = index.file(MANIFEST_FILE)
    if entry.size_bytes > MAX_JSON_BYTES:
        raise PackageError(f"{MANIFEST_FILE} is over {MAX_JSON_BYTES} bytes", remedy=AGAIN)
    return manifest_from_bytes(b"".join(checked(content.parts(entry), entry)))


def _fitting(manifest: Manifest, profile: DeviceProfile) -> list[str]:
    found = [variant.name for variant in manifest.fitting(profile)]
    if not found:
        raise PackageError(
            f"no variant of {manifest.name}:{manifest.version} fits the profile {profile.name}",
            remedy="`fleet package show` lists what each variant is for",
        )
    return found


def _check_whole(file: Path, archive: Archive) -> None:
    lacking = [e.path for e in archive.index.files if e.sha256 not in archive.blobs]
    if lacking:
        raise PackageError(
            f"{file} holds only a part of the package: it lacks {len(lacking)} files, such as "
            f"{lacking[0]}",
            remedy=WHOLE,
        )


@contextlib.contextmanager
def _new_file(to: Path) -> Iterator[BinaryIO]:
    """Open a file beside `to` that takes its name when the `with` block ends well.

    Raises:
        PackageError: It exists, or cannot be written.
    """
    if to.exists() or to.is_symlink():
        raise PackageError(f"{to} exists already", remedy="name another file, or remove it")
    try:
        # What a killed attempt left has the same name, so it does not fill the stick.
        temporary = temporary_of(to)
        descriptor = opened_alone(temporary, PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            try:
                file.truncate(0)
                with contextlib.suppress(OSError):  # some file systems of sticks have no modes
                    os.fchmod(descriptor, PUBLIC)
                yield file
                file.flush()
                os.fsync(descriptor)
                temporary.rename(to)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        sync_directory(to.parent)
    except OSError as exc:
        raise PackageError(
            f"{to} cannot be written: {exc.strerror or exc}",
            remedy="name a file in a directory that can be written, with room for the package",
        ) from exc


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tuple[int, int]]:
    try:
        stream = open_file(file)
    except OSError as exc:
        raise PackageError(
            f"{file} cannot be read: {exc.strerror}", remedy="name a file of `fleet package export`"
        ) from exc
    with stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise PackageError(
                f"{file} cannot be read: it is not a file",
                remedy="name a file of `fleet package export`",
            )
        yield stream.fileno(), status.st_size
