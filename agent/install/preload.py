"""Stores a package that the operator hands over as a file, so that its install needs no transfer.

Rules:
- It orders nothing: what the device runs is for the desired state to say. An install finds the
  files in their places, and checks them as it checks fetched ones.
- All that can be refused is refused before anything is written: signature, form, variants that
  this device can run and that the file lacks, storage.
- Each chunk is checked against its signed digest before it is stored, and a file gets its name when
  all of it is correct and durable. After a power cut the next attempt keeps what came.
- The last package that was handed over is kept for as long as the storage is not needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from agent.errors import NoVariantError, storage_faults
from agent.install.preflight import check_storage, fitting, reserved_bytes
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.package_files import clear_way, is_intact, keep_directory, refuse_links
from agent.packages import Package
from agent.trust.keeper import MetadataTrust
from wire.codec import sha256_hex
from wire.errors import IntegrityError
from wire.files import PRIVATE
from wire.metadata import metadata_from
from wire.package.archive import AGAIN, Archive, Member, metadata_in, open_archive
from wire.package.index import ENVELOPE_FILE, FileEntry, entry_for
from wire.profile import DeviceProfile
from wire.trust.root import Trust

READ_BYTES: Final = 1024 * 1024
SYNC_BYTES: Final = 8 * 1024 * 1024
"""Written to the storage so often: a slow card must not keep the operator's command waiting."""


class Source(Protocol):
    """The file that the operator hands over."""

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly so many bytes of it, at most 1 MiB; raises FleetError if it cannot."""
        ...


class Preloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    release: str
    digest: str
    variants: tuple[str, ...]
    """The variants that are kept on this device."""

    stored_bytes: int
    had_bytes: int
    """Size of the files that were there before."""


class Preload:
    """Takes packages as files. For the thread that has the turn.

    Args:
        profile: This device, with the runtimes that are installed here.
        trust: The keys that may sign packages.
        slots: Where packages are.
        store: Knows which packages must stay.
        check: Called before each chunk; raises to end the work.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        trust: Trust,
        *,
        slots: Slots,
        store: StateStore,
        check: Callable[[], None],
    ) -> None:
        self._profile = profile
        self._trust = trust
        self._slots = slots
        self._store = store
        self._check = check

    def open(self, source: Source) -> Archive:
        """Verify the index of a file, and find what it holds; nothing is stored.

        Args:
            source: The file.

        Returns:
            What it holds.

        Raises:
            FleetError: It is no package, has no valid signature, or cannot be read.
        """

        def read(offset: int, length: int) -> bytes:
            return _read(source, offset, length)

        if isinstance(self._trust, MetadataTrust):
            data = metadata_in(read, source.size_bytes)
            if data is not None:
                self._trust.receive(metadata_from(data), now=True)
        return open_archive(read, source.size_bytes, self._trust)

    def store(self, source: Source, archive: Archive) -> Preloaded:
        """Store the files that this device needs of a package.

        Args:
            source: The file.
            archive: What `open` found in it.

        Returns:
            What was stored.

        Raises:
            NoVariantError: No variant fits, or the file lacks one that does.
            StorageFullError: There is too little storage.
            FleetError: The file or the storage failed, or the agent stops.
        """
        digest = archive.index.digest
        package = Package(
            digest=digest,
            directory=self._slots.directory(digest),
            index=archive.index,
            manifest=archive.manifest,
        )
        variants = fitting(package, self._profile)
        entries = package.files(variants)
        _check_whole(archive, entries)
        envelope = entry_for(ENVELOPE_FILE, archive.envelope)
        lacking = [e for e in (envelope, *entries) if not self._has(package.directory, e)]
        if lacking:
            self._check_storage(digest, sum(entry.size_bytes for entry in lacking))
            self._make(package.directory, digest)
        for entry in lacking:
            self._place(source, archive, entry, package.directory)
        if lacking:
            self._slots.settle(digest)
        came = sum(entry.size_bytes for entry in lacking)
        return Preloaded(
            release=package.release,
            digest=digest,
            variants=tuple(variant.name for variant in variants),
            stored_bytes=came,
            had_bytes=sum(entry.size_bytes for entry in (envelope, *entries)) - came,
        )

    def _has(self, directory: Path, entry: FileEntry) -> bool:
        self._check()
        return is_intact(directory, entry)

    def _check_storage(self, digest: str, needed_bytes: int) -> None:
        check_storage(
            self._slots,
            needed_bytes=needed_bytes,
            allowed_bytes=self._profile.storage_bytes,
            keep={*self._store.state.wanted, digest},
            reserved_bytes=reserved_bytes(
                self._store.state.models.values(),
                self._slots,
                self._profile,
                self._trust,
                but=digest,
            ),
        )

    def _make(self, directory: Path, digest: str) -> None:
        if not self._slots.has(digest):  # else files of an installed package are mended
            self._slots.preload(digest, keep=self._store.state.wanted)
        with storage_faults("cannot make the directory of the package"):
            keep_directory(directory)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _place(self, source: Source, archive: Archive, entry: FileEntry, directory: Path) -> None:
        """Store one file; what is right of an earlier attempt is kept."""
        clear_way(directory, entry.path)
        clear_way(self._slots.parts, entry.sha256)
        refuse_links(directory, entry.path)
        part, place = self._slots.parts / entry.sha256, directory / entry.path
        if entry.path == ENVELOPE_FILE:
            member: Member | None = None
        else:
            member = archive.blobs[entry.sha256]
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with storage_faults(f"cannot store {entry.path}"):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(part, flags, PRIVATE)
            try:
                if member is None:
                    _write(descriptor, archive.envelope, 0)
                else:
                    self._fill(source, member, entry, archive.index.chunk_bytes, descriptor)
                os.ftruncate(descriptor, entry.size_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.replace(place)

    def _fill(
        self, source: Source, member: Member, entry: FileEntry, chunk_bytes: int, descriptor: int
    ) -> None:
        """Bring the chunks of a file into its partial file.

        Raises:
            IntegrityError: The content differs from what was signed.
        """
        digest = hashlib.sha256()
        unsynced = 0
        for number, expected in enumerate(entry.chunks):
            self._check()
            offset = number * chunk_bytes
            length = min(chunk_bytes, entry.size_bytes - offset)
            chunk = os.pread(descriptor, length, offset)
            if len(chunk) != length or sha256_hex(chunk) != expected:
                chunk = _read(source, member.offset + offset, length)
                if sha256_hex(chunk) != expected:
                    raise IntegrityError(
                        f"{entry.path} in the package file differs from the signed file",
                        remedy=AGAIN,
                    )
                _write(descriptor, chunk, offset)
                unsynced += length
            digest.update(chunk)
            if unsynced >= SYNC_BYTES:
                os.fdatasync(descriptor)
                unsynced = 0
        if digest.hexdigest() != entry.sha256:
            raise IntegrityError(f"the chunks of {entry.path} do not give the signed file")


def _check_whole(archive: Archive, entries: tuple[FileEntry, ...]) -> None:
    """Refuse a file without all that this device needs.

    Raises:
        NoVariantError: It lacks something.
    """
    lacking = [entry.path for entry in entries if entry.sha256 not in archive.blobs]
    if lacking:
        raise NoVariantError(
            f"the package file lacks {lacking[0]}, which this device needs{_and_more(lacking)}",
            remedy="export it for the profile of this device, or without --profile",
        )


def _and_more(lacking: Sequence[str]) -> str:
    more = len(lacking) - 1
    return f", and {more} more" if more else ""


def _read(source: Source, offset: int, length: int) -> bytes:
    parts = [
        source.read(at, min(READ_BYTES, offset + length - at))
        for at in range(offset, offset + length, READ_BYTES)
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
