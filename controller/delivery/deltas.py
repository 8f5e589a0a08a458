"""Offers deltas to devices when they pay, and lets them be made: on request, and ahead of rollouts.

Rules:
- A device is offered only what leads to a file of the published release that is assigned to it, and
  only from files of releases that this controller ordered for it before. What a device claims to
  have beyond that counts for nothing.
- Asking is cheap, and what it begins is bounded: each pair of files is made once.
- A device never has to wait: it may fetch the file meanwhile.
- One controller at a time makes and removes deltas in a folder.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from controller.config import DeltasConfig
from controller.delivery.encoding import Encoding
from controller.delivery.making import Maker
from controller.delivery.packages import Packages
from controller.domain.deltas import Package, Way, ahead, ways
from controller.domain.states import DeltaState
from controller.errors import StorageError
from controller.services.blobs import DELTAS_FOLDER, BlobStore
from controller.store import deltas, rollouts
from controller.store.database import Database
from controller.store.release_tables import DeltaRow
from wire.clock import Clock
from wire.codec import convert
from wire.delivery import MAX_SOURCE_PACKAGES, DeltaSource
from wire.delta.zstd import is_installed
from wire.errors import WireFormatError
from wire.files import Lock, lock
from wire.package.index import is_digest
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

TICK_FILES: Final = 4096
"""Of packages, that are looked at in one tick."""

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
        """Return a part of a blob; see `BlobStore.read`.

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

    key: str
    """Its public key: another device of its name was given nothing of this."""


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rollout for whose devices deltas are made ahead."""

    id: str
    moves: list[deltas.Move]
    """Those that are left; what most devices need comes first."""

    known: dict[str, deltas.Named]
    chosen: set[deltas.Pair] = field(default_factory=set)


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
        folder = self._folder = blobs_dir / DELTAS_FOLDER
        kept = BlobStore(folder)
        self._lock: Lock | None = None
        self._has_warned = False
        self.readable = WithDeltas(blobs, kept)
        self.is_enabled = config.enabled and is_installed()
        if config.enabled and not self.is_enabled:
            _log.warning("no deltas are made: Zstandard is missing; install edgefleet[controller]")
        self.packages = Packages(blobs)
        keep_bytes = config.keep_bytes if self.is_enabled else 0
        encoding = Encoding(folder / MAKING_FOLDER, blobs)
        self._maker = Maker(database, kept, encoding, keep_bytes, clock)
        self._devices: dict[str, _Device] = {}
        self._is_tidy = False
        self._prepared: set[str] = set()
        """Rollouts for which what is to be made was looked up."""

        self._preparing: deque[_Rollout] = deque()
        self._trimmed_s: float | None = None

    def start(self) -> None:
        """Begin to make deltas."""
        if self.is_enabled:
            self._maker.start()

    def stop(self, timeout_s: float) -> None:
        """Stop making deltas; what is there stays."""
        self._maker.stop(timeout_s)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

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
        if not (self.is_enabled and self._is_tidy and is_digest(blob_sha256)):
            return None
        known = self._known(device, blob_sha256)
        if known is None:
            return None
        has = set(packages[:MAX_SOURCE_PACKAGES])
        named = (release for release in known.given if release.digest in has)
        bases = [package for each in named if (package := self._package(each)) is not None]
        found = ways(known.package, blob_sha256, bases, known.profile)
        return self._best(device, found) if found else None

    def tick(self) -> None:
        """Do what time asks for: tidy up after the last start, make ahead, remove what must go.

        Raises:
            DatabaseError: The database does not answer.
            StorageError: The disk does not answer.
        """
        if not self._is_tidy:
            if not self._is_alone():
                return
            self._maker.tidy()
            self._is_tidy = True
        if self.is_enabled:
            self._prepare()
        now_s = self._clock.monotonic_s()
        if self._trimmed_s is None or now_s - self._trimmed_s >= TRIM_EVERY_S:
            self._maker.trim()
            self._trimmed_s = now_s

    def _is_alone(self) -> bool:
        """Tell whether no other controller makes deltas here; keep others away from then on.

        Raises:
            StorageError: The folder cannot be locked.
        """
        if self._lock is None:
            try:
                self._lock = lock(self._folder)
            except OSError as exc:
                fact = (exc.strerror or str(exc)).lower()
                raise StorageError(f"cannot lock {self._folder}: {fact}") from exc
        if self._lock is None and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "no deltas are made or offered as long as another controller uses %s; give each "
                "controller a blobs_dir of its own",
                self._folder,
            )
        return self._lock is not None

    def _best(self, device: str, found: tuple[Way, ...]) -> DeltaSource | float | None:
        """Return the smallest delta that is ready, or let the best one be made."""
        with self._database.reading() as transaction:
            known = deltas.find(transaction, [way.pair for way in found])
        *bases, compressed = found
        for group in (bases, [compressed]):
            ready = []
            for way in group:
                row = known.get(way.pair)
                if row is not None and row.state == DeltaState.READY:
                    if self._maker.is_there(deltas.kept_in(row)):
                        ready.append(row)
                    else:
                        del known[way.pair]
            to_make = next((way for way in group if self._is_open(known.get(way.pair))), None)
            if ready:
                smallest = min(ready, key=lambda row: row.size_bytes or 0)
                self._note_use(smallest)
                if to_make is not None:
                    self._maker.ask_ahead(to_make)
                return _source(smallest)
            if to_make is not None:
                return self._maker.ask(device, to_make)
        return None

    def _is_open(self, row: DeltaRow | None) -> bool:
        """Tell whether a delta is being made or is to be made."""
        if row is None or row.state == DeltaState.MAKING:
            return True
        if row.state == DeltaState.NONE:
            return not deltas.does_not_pay(row) and self._maker.may_keep(row.size_bytes or 0)
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
        with self._database.reading() as transaction:
            if known is not None and now_s - known.read_s < KNOWN_S:
                is_same = known.key == deltas.key_of(transaction, device)
                if is_same and known.package.has(blob_sha256):
                    return known
            wanted = deltas.wanted_by(transaction, device, blob_sha256)
        package = None if wanted is None else self._package(wanted.release)
        if wanted is None or package is None:
            self._devices.pop(device, None)
            return None
        if len(self._devices) >= MAX_KNOWN:
            self._devices.clear()
        known = _Device(now_s, package, _profile(wanted.kind), wanted.given, wanted.key)
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
        going_on = (each for each in self._preparing if each.id in active)
        begun = (_Rollout(rollout, moves[rollout], known) for rollout in new)
        self._preparing = deque((*going_on, *begun))
        self._prepared = set(active)
        left = TICK_FILES
        while self._preparing and left > 0:
            left -= self._prepare_move(self._preparing[0])
            if not self._preparing[0].moves:
                self._preparing.popleft()

    def _prepare_move(self, rollout: _Rollout) -> int:
        """Let what some devices will ask for be made; return how many files were looked at.

        Raises:
            DatabaseError: The database does not answer.
        """
        if not rollout.moves:
            return 0
        move = rollout.moves[0]
        package = self._package(rollout.known.get(move.release))
        base = self._package(rollout.known.get(move.runs or ""))
        found: dict[deltas.Pair, Way] = {}
        if package is not None:
            for way in ahead(package, base, _profile(move.kind)):
                if len(rollout.chosen) + len(found) >= MAX_AHEAD:
                    break
                if way.pair not in rollout.chosen:
                    found[way.pair] = way
        with self._database.reading() as transaction:
            rows = deltas.find(transaction, found)
        for way in found.values():
            if self._is_open(rows.get(way.pair)):
                self._maker.ask_ahead(way)
        rollout.chosen.update(found)
        del rollout.moves[: 1 if len(rollout.chosen) < MAX_AHEAD else None]
        return sum(len(each.index.files) for each in (package, base) if each is not None) + 1

    def _package(self, release: deltas.Named | None) -> Package | None:
        return None if release is None else self.packages.get(release)


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
