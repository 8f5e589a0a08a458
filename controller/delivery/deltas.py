"""Offers deltas to devices when they pay, and lets them be made: on request, and ahead of rollouts.

Rules:
- A device is offered only what leads to a file of the published release that is assigned to it, and
  only from files of releases that this controller ordered for it before. What a device claims to
  have beyond that counts for nothing.
- Asking is cheap, and what it begins is bounded: each pair of files is made once.
- A device never has to wait: it may fetch the file meanwhile.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from controller.config import DeltasConfig
from controller.delivery.encoding import Encoding
from controller.delivery.making import Maker
from controller.delivery.packages import Packages
from controller.domain.deltas import Package, Way, ahead, ways
from controller.domain.states import DeltaState
from controller.services.blobs import DELTAS_FOLDER, BlobStore
from controller.store import deltas, rollouts
from controller.store.database import Database
from controller.store.tables import DeltaRow
from wire.clock import Clock
from wire.codec import convert
from wire.delta.zstd import is_installed
from wire.errors import WireFormatError
from wire.messages import MAX_SOURCE_PACKAGES, DeltaSource
from wire.profile import DeviceProfile, only_runtimes

MAKING_FOLDER: Final = "making"
FAILED_S: Final = 3600.0
"""After this time a delta that could not be made may be tried again."""

KNOWN_S: Final = 10.0
MAX_KNOWN: Final = 1000
"""How long the controller relies on what it read of a device, and of how many."""

USE_STEP_S: Final = 3600.0
"""The use of a delta is noted no more often."""

TRIM_EVERY_S: Final = 60.0
MAX_AHEAD: Final = 128
"""Deltas that are made ahead for one rollout."""

_log = logging.getLogger(__name__)


class WithDeltas:
    """The blobs that devices may fetch: those of packages, and the deltas.

    Args:
        blobs: The content of packages.
        kept: The deltas.
    """

    def __init__(self, blobs: BlobStore, kept: BlobStore) -> None:
        self._blobs = blobs
        self._kept = kept

    def store_of(self, sha256: str) -> BlobStore:
        """Return the store that has a blob, or that of packages if none has it.

        Raises:
            WireFormatError: Not a digest.
            StorageError: The disk does not answer.
        """
        return self._blobs if self._kept.size_bytes(sha256) is None else self._kept

    def read(self, sha256: str, *, offset: int = 0, length: int) -> bytes:
        """Return a part of a blob.

        Args:
            sha256: The blob.
            offset: Where the part begins, in bytes.
            length: The greatest number of bytes.

        Returns:
            The bytes; fewer at the end of the blob.

        Raises:
            WireFormatError: Not a digest.
            UnknownBlobError: It is not there.
            StorageError: The disk cannot be read.
        """
        return self.store_of(sha256).read(sha256, offset=offset, length=length)

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob, to read it; see `BlobStore.open`.

        Raises:
            WireFormatError: Not a digest.
            UnknownBlobError: It is not there.
            StorageError: The disk cannot be read.
        """
        return self.store_of(sha256).open(sha256)


class _Device(NamedTuple):
    """What the controller knows of a device that asks."""

    read_s: float
    package: Package
    """What it has to run."""

    profile: DeviceProfile | None
    given: tuple[deltas.Named, ...]
    """The newest first."""


class Deltas:
    """The deltas of the fleet.

    Args:
        database: The control state.
        blobs: The content of packages.
        blobs_dir: Where it is; the deltas are in a folder of their own there.
        config: Whether deltas are made, and how much they may take.
        clock: Wall time and durations.

    Raises:
        StorageError: The directory cannot be written.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        blobs_dir: Path,
        config: DeltasConfig,
        clock: Clock,
    ) -> None:
        self._database = database
        self._clock = clock
        folder = blobs_dir / DELTAS_FOLDER
        kept = BlobStore(folder)
        self.readable = WithDeltas(blobs, kept)
        self.is_enabled = config.enabled and is_installed()
        if config.enabled and not self.is_enabled:
            _log.warning("no deltas are made: Zstandard is missing; install edgefleet[controller]")
        self._packages = Packages(blobs)
        keep_bytes = config.keep_bytes if self.is_enabled else 0
        encoding = Encoding(folder / MAKING_FOLDER, blobs)
        self._maker = Maker(database, kept, encoding, keep_bytes, clock)
        self._devices: dict[str, _Device] = {}
        self._is_tidy = False
        self._prepared: set[str] = set()
        """Rollouts for which what is to be made was looked up."""

        self._trimmed_s: float | None = None

    def start(self) -> None:
        """Begin to make deltas."""
        if self.is_enabled:
            self._maker.start()

    def stop(self, timeout_s: float) -> None:
        """Stop making deltas; what is there stays."""
        self._maker.stop(timeout_s)

    def offer(
        self, device: str, blob_sha256: str, packages: tuple[str, ...]
    ) -> DeltaSource | float | None:
        """Return the smallest delta to a file that pays.

        Args:
            device: The device that lacks the file.
            blob_sha256: The file.
            packages: Digests of the packages that the device says it has.

        Returns:
            The delta, without URLs; or seconds until one may be ready; or None.

        Raises:
            DatabaseError: The database does not answer.
        """
        if not (self.is_enabled and self._is_tidy):
            return None
        known = self._known(device, blob_sha256)
        if known is None:
            return None
        has = set(packages[:MAX_SOURCE_PACKAGES])
        named = (release for release in known.given if release.digest in has)
        bases = [package for each in named if (package := self._package(each)) is not None]
        found = ways(known.package, blob_sha256, bases, known.profile)
        return self._best(found) if found else None

    def tick(self) -> None:
        """Do what time asks for: tidy up after the last start, make ahead, remove what must go.

        Raises:
            DatabaseError: The database does not answer.
            StorageError: The disk does not answer.
        """
        if not self._is_tidy:
            self._maker.tidy()
            self._is_tidy = True
        if self.is_enabled:
            self._prepare()
        now_s = self._clock.monotonic_s()
        if self._trimmed_s is None or now_s - self._trimmed_s >= TRIM_EVERY_S:
            self._maker.trim()
            self._trimmed_s = now_s

    def _best(self, found: tuple[Way, ...]) -> DeltaSource | float | None:
        """Return the smallest delta that is ready, or let the best one be made."""
        with self._database.reading() as transaction:
            known = deltas.find(transaction, [way.pair for way in found])
        *bases, compressed = found
        for group in (bases, [compressed]):
            rows = [row for way in group if (row := known.get(way.pair)) is not None]
            ready = [row for row in rows if row.state == DeltaState.READY]
            to_make = next((way for way in group if self._is_open(known.get(way.pair))), None)
            if ready:
                smallest = min(ready, key=lambda row: row.size_bytes or 0)
                self._note_use(smallest)
                if to_make is not None:
                    self._maker.ask_ahead(to_make)
                return _source(smallest)
            if to_make is not None:
                return self._maker.ask(to_make)
        return None

    def _is_open(self, row: DeltaRow | None) -> bool:
        """Tell whether a delta is being made or is to be made."""
        if row is None or row.state == DeltaState.MAKING:
            return True
        since_s = self._clock.now_s() - row.made_at_s
        return row.state == DeltaState.FAILED and not 0 <= since_s < FAILED_S

    def _note_use(self, row: DeltaRow) -> None:
        now_s = self._clock.now_s()
        if not 0 <= now_s - row.used_at_s < USE_STEP_S:
            with self._database.transaction() as transaction:
                deltas.note_use(transaction, (row.base, row.target), now_s=now_s)

    def _known(self, device: str, blob_sha256: str) -> _Device | None:
        """Return what a device has to run and was given before; None if it may read nothing.

        What was read a moment ago is relied on as long as the device asks for a file of it.
        """
        now_s = self._clock.monotonic_s()
        known = self._devices.get(device)
        if known is not None and now_s - known.read_s < KNOWN_S and known.package.has(blob_sha256):
            return known
        with self._database.reading() as transaction:
            wanted = deltas.wanted_by(transaction, device)
        package = None if wanted is None else self._package(wanted.release)
        if wanted is None or package is None:
            self._devices.pop(device, None)
            return None
        if len(self._devices) >= MAX_KNOWN:
            self._devices.clear()
        known = _Device(now_s, package, _profile(wanted.kind), wanted.given)
        self._devices[device] = known
        return known

    def _prepare(self) -> None:
        """Let what the devices of new rollouts will ask for be made.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            active = rollouts.active_ids(transaction)
            new = [rollout for rollout in active if rollout not in self._prepared]
            moves = {rollout: deltas.moves(transaction, rollout) for rollout in new}
            asked = {digest for found in moves.values() for move in found for digest in move[:2]}
            known = deltas.named(transaction, filter(None, asked))
        for found in moves.values():
            self._prepare_moves(found, known)
        self._prepared = set(active)

    def _prepare_moves(self, moves: list[deltas.Move], known: dict[str, deltas.Named]) -> None:
        """Let what some devices will ask for be made, what most of them need first.

        Raises:
            DatabaseError: The database does not answer.
        """
        wanted: dict[deltas.Pair, Way] = {}
        for move in moves:
            package = self._package(known.get(move.release))
            if package is not None:
                base = self._package(known.get(move.runs or ""))
                for way in ahead(package, base, _profile(move.kind)):
                    wanted.setdefault(way.pair, way)
        chosen = list(wanted.values())[:MAX_AHEAD]
        with self._database.reading() as transaction:
            rows = deltas.find(transaction, [way.pair for way in chosen])
        for way in chosen:
            if self._is_open(rows.get(way.pair)):
                self._maker.ask_ahead(way)

    def _package(self, release: deltas.Named | None) -> Package | None:
        return None if release is None else self._packages.get(release)


def _source(row: DeltaRow) -> DeltaSource:
    return DeltaSource(
        base=row.base,
        sha256=row.sha256 or "",
        size_bytes=row.size_bytes or 0,
        chunk_bytes=row.chunk_bytes,
        chunks=tuple(row.chunks),
    )


def _profile(kind: deltas.Kind) -> DeviceProfile | None:
    try:
        profile = convert(kind.profile, DeviceProfile)
    except WireFormatError:
        return None
    return profile if kind.runtimes is None else only_runtimes(profile, kind.runtimes)
