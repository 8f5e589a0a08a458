"""The files of trusted metadata on this device: what came, what is believed, what stays known.

```
trust/incoming/       files as they came, not checked
trust/metadata/       what was believed, as the check's process keeps it
trust/trusted.json    what that says, in short
trust/floors.json     least versions and time that are believed; a copy beside it
trust/accepted.json   packages that were listed when they came into service; a copy beside it
trust/origin.json     the digest of the root that all of it follows
trust/first.json      that root, as the device had it when the agent started
```

Rules:
- What came need not survive a power cut: the controller sends it again.
- A file that is damaged counts as none, and says nothing of another root.
- Where one of two copies is damaged, missing or older, the next start writes it anew.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agent.errors import StorageError, storage_faults
from agent.sealed import SealedFile
from agent.trust.floors import Floors
from agent.trust.job import MAX_BYTES, Job
from agent.trust.roots import fleet_of
from agent.trust.trusted import Trusted
from wire.codec import sha256_hex
from wire.errors import IntegrityError, WireFormatError
from wire.files import PRIVATE, make_directory, read_regular, sync_directory, write_atomic
from wire.metadata import MAX_FILE_BYTES, MAX_ROOTS, MetadataFile, parse_file_name
from wire.trust.roles import ROOT, TIMESTAMP, TOP_LEVEL

MAX_LISTS: Final = 32
"""How many lists may wait to be checked: each is a file."""

K = TypeVar("K", bound=msgspec.Struct)


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of packages that were listed when they came into service, the newest last."""

    digests: tuple[str, ...] = ()


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """By which first root what is kept was believed."""

    root_sha256: str


class KeptFiles:
    """What is kept of trusted metadata. Callers take turns.

    Args:
        root: The root that came with the device.
        directory: Where the rest is kept.

    Raises:
        StorageError: The folders cannot be made, or the root cannot be read.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        with storage_faults("cannot read the root of the metadata"):
            self._root = root.read_bytes()
        self.directory = directory
        self._root_copy = directory / "first.json"
        self._incoming = directory / "incoming"
        self._metadata = directory / "metadata"
        with storage_faults("cannot make the folders of the metadata"):
            for folder in (directory, self._metadata):  # the other one comes and goes
                make_directory(folder)
        self._trusted_file = SealedFile(directory / "trusted.json", Trusted, limit_bytes=MAX_BYTES)
        self._floor_files = _copies(directory, "floors", Floors)
        self._accepted_files = _copies(directory, "accepted", Accepted)
        self._origin_file = SealedFile(directory / "origin.json", Origin, limit_bytes=MAX_BYTES)
        self._begin_anew_with_another_root()
        floors = [_read(file) for file in self._floor_files]
        self.floors = _highest(floors)
        """The least versions and the least time that are believed."""

        if self.floors != Floors() and any(copy != self.floors for copy in floors):
            with contextlib.suppress(StorageError):
                self.keep_floors(self.floors)
        self.trusted = _read(self._trusted_file)
        """What the metadata says that was believed last; None before there is any."""

        accepted = [_read(file) for file in self._accepted_files]
        self.accepted = next((copy.digests for copy in accepted if copy is not None), ())
        """Digests of packages that stay believed, the newest last."""

        self.is_new = not any(
            file.path.exists() or file.was_damaged for file in self._accepted_files
        )
        """Whether no package was ever accepted here."""

        if self.accepted and any(
            copy is None or copy.digests != self.accepted for copy in accepted
        ):
            with contextlib.suppress(StorageError):
                self.keep_accepted(self.accepted)

    @property
    def has_metadata(self) -> bool:
        """Whether there is metadata that was believed."""
        return (self._metadata / f"{TIMESTAMP}.json").exists()

    def job(self, models: tuple[str, ...]) -> Job:
        """Return what the process that checks needs to know.

        Args:
            models: The models whose releases are wanted.

        Raises:
            StorageError: The root cannot be put where the process finds it.
        """
        # Another root counts from the next start on, when what was believed is forgotten.
        with storage_faults("cannot keep the root of the metadata"):
            if self._root_copy.is_dir():
                shutil.rmtree(self._root_copy)
            if self._root not in _readable(self._root_copy):
                write_atomic(self._root_copy, self._root, mode=PRIVATE)
        return Job(
            root=str(self._root_copy),
            trusted=str(self._metadata),
            incoming=str(self._incoming),
            models=models,
            floors=self.floors,
        )

    def keep_floors(self, floors: Floors) -> None:
        """Save floors; raises StorageError."""
        for file in self._floor_files:
            file.write(floors)
        self.floors = floors

    def keep_trusted(self, trusted: Trusted) -> None:
        """Save what is believed; raises StorageError."""
        self._trusted_file.write(trusted)
        self.trusted = trusted

    def keep_accepted(self, digests: tuple[str, ...]) -> None:
        """Save which packages stay believed; raises StorageError."""
        for file in self._accepted_files:
            file.write(Accepted(digests=digests))
        self.accepted, self.is_new = digests, False

    def put(self, files: Iterable[MetadataFile]) -> None:
        """Put files that came where the check finds them.

        Raises:
            WireFormatError: One has no possible name, or there is too much.
            StorageError: The storage failed.
        """
        newest = {file.name: file for file in files}
        if len(newest) > MAX_LISTS + MAX_ROOTS:
            raise WireFormatError("more metadata has come at once than a device can need")
        with storage_faults("cannot keep the metadata that came"):
            self._incoming.mkdir(mode=0o700, exist_ok=True)
            for file in newest.values():
                self._put(file)

    def clear(self) -> None:
        """Remove what came, after it was checked."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._incoming)

    def _put(self, file: MetadataFile) -> None:
        role, version = parse_file_name(file.name)
        content = file.content.encode()
        if len(content) > MAX_FILE_BYTES or ((version or 0) > MAX_ROOTS and role == ROOT):
            raise WireFormatError(f"the metadata {file.name} is too large")
        if role not in TOP_LEVEL and len([*self._incoming.iterdir()]) > MAX_LISTS:
            raise WireFormatError("more lists have come than a device can need")
        place = self._incoming / f"{role}.json"
        if role == ROOT:
            (self._incoming / "roots").mkdir(mode=0o700, exist_ok=True)
            place = self._incoming / "roots" / f"{file.name}.json"
        place.write_bytes(content)

    def _begin_anew_with_another_root(self) -> None:
        """Forget what was believed by another root than the one that the device has now.

        An operator replaces the root where nothing else helps: most of its keys were stolen, or
        lost. What was installed stays believed.
        """
        before, digest = _read(self._origin_file), sha256_hex(self._root)
        is_noted = before is not None and before.root_sha256 == digest
        history = (self._metadata / "root_history").glob("*.json")
        roots = [
            content
            for content in _readable(*history, self._root_copy)
            if fleet_of(content) is not None
        ]
        # Where that was not noted, or the note is damaged, what is left of the roots tells it. A
        # root that is missing or damaged says nothing, and the floors go on to count.
        is_other = bool(roots) and fleet_of(self._root) not in map(fleet_of, roots)
        if before is not None and not is_noted:
            is_other = is_other or self._root not in roots
        if is_other:
            with storage_faults("cannot forget what another root vouched for"):
                shutil.rmtree(self._metadata)
                self._metadata.mkdir(mode=0o700)
                for path in (self._trusted_file.path, *(f.path for f in self._floor_files)):
                    path.unlink(missing_ok=True)
                # Else a power cut may bring them back, beside the note that they are gone.
                sync_directory(self.directory)
        if not is_noted:
            self._origin_file.write(Origin(root_sha256=digest))


def _readable(*paths: Path) -> Iterator[bytes]:
    """Yield what files hold; one that cannot be read is as good as damaged."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield read_regular(path, MAX_FILE_BYTES)


def _copies(directory: Path, name: str, kind: type[K]) -> tuple[SealedFile[K], ...]:
    return tuple(
        SealedFile(directory / file, kind, limit_bytes=MAX_BYTES)
        for file in (f"{name}.json", f"{name}.copy.json")
    )


def _read(file: SealedFile[K]) -> K | None:
    """Return what a file holds; a damaged one is moved aside, and counts as none."""
    try:
        return file.read()
    except IntegrityError:
        file.set_aside()
        return None


def _highest(found: Iterable[Floors | None]) -> Floors:
    """Return the floors of two copies; a power cut may have come between them."""
    known = [floors for floors in found if floors is not None]
    return max(known, key=lambda floors: (floors.root, floors.time_s), default=Floors())
