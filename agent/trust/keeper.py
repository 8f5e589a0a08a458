"""Keeps the fleet's trusted metadata on this device, and answers whom to believe by it.

```
trust/incoming/       files as they came, not checked
trust/metadata/       what was believed, as the check's process keeps it
trust/trusted.json    what that says, in short
trust/floors.json     least versions and time that are believed; a copy beside it
trust/accepted.json   packages that were listed when they came into service; a copy beside it
```

Rules:
- Nothing that came is believed before the process that checks it has said so. A set that is wrong
  changes nothing, and is told.
- What is new waits until the metadata is fresh and lists it. What was installed goes on, listed or
  not: a list that is withheld, or a key that is taken back, stops no device.
- Floors are saved before what raised them is believed.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agent.errors import StorageError, storage_faults
from agent.ports import RecorderPort
from agent.sealed import SealedFile
from agent.trust.floors import Floors
from agent.trust.job import MAX_BYTES, Job, Outcome
from agent.trust.process import run_check
from agent.trust.trusted import (
    NOTHING,
    Clocked,
    Trusted,
    not_fresh,
    not_listed,
    not_timely,
)
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.errors import FleetError, IntegrityError, SignatureError, WireFormatError
from wire.files import PRIVATE, write_atomic
from wire.messages import DESIRED_PAYLOAD_TYPE, MetadataFile, MetadataVersions
from wire.metadata import MAX_FILE_BYTES, MAX_ROOTS, parse_file_name
from wire.package.index import index_from_bytes, is_digest
from wire.trust.envelope import read_unverified, unseal
from wire.trust.roles import ROOT, TIMESTAMP, TOP_LEVEL
from wire.trust.root import Role, RoleName

MAX_ACCEPTED: Final = 256
MAX_MODELS: Final = 64
CHECKS: Final = 8
"""How many checks may follow each other; one more comes each `CHECK_EVERY_S`."""

CHECK_EVERY_S: Final = 5.0
LAST_SHARE: Final = 1 / 8
"""When so much of its life is left, the device asks for newer: what was sent may have been lost."""

MAX_LISTS: Final = 32
"""How many lists may wait to be checked: each is a file."""

NOBODY: Final = Role(keys=(), threshold=1)
WAIT_FOR_IT: Final = "connect the device with its controller, or bring newer metadata by file"
K = TypeVar("K", bound=msgspec.Struct)


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of packages that were listed when they came into service, the newest last."""

    digests: tuple[str, ...] = ()


class MetadataTrust:
    """Whom this device believes, by trusted metadata. For any thread.

    Args:
        root: The first root, which came with the device.
        fleet: The name of the fleet in it.
        directory: Where the rest is kept.
        events: Takes an event when metadata is refused, and when newer is believed.
        clock: Wall time.
        grace_s: How long after its end metadata still counts as fresh.
        on_missing: Called when lists are needed that have not come.
    """

    def __init__(
        self,
        root: Path,
        fleet: str,
        directory: Path,
        events: RecorderPort,
        clock: Clock,
        *,
        grace_s: float = 0.0,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._fleet = fleet
        self._directory = directory
        self._events = events
        self._clock = clock
        self._grace_s = grace_s
        self.on_missing = on_missing
        self._lock = threading.RLock()
        self._refused = ""
        self._lacks = False
        """Whether the last check failed. What is on the disk may be damaged then, so the device
        says that it has nothing, and gets everything."""

        self._checks = CHECKS
        self._refilled_s = clock.monotonic_s()
        self._is_due = False
        self._floor_since_s = clock.monotonic_s()
        self._follows: tuple[float | None, int | None] = (None, None)
        self._order = b""
        """The desired state that is followed, signed."""

        self._ordered_by = NOBODY
        """Who could sign desired states when that was last found right."""

        with storage_faults("cannot make the folders of the metadata"):
            for folder in (directory, self._incoming, self._metadata):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._trusted_file = SealedFile(directory / "trusted.json", Trusted, limit_bytes=MAX_BYTES)
        self._floor_files = tuple(
            SealedFile(directory / name, Floors, limit_bytes=MAX_BYTES)
            for name in ("floors.json", "floors.copy.json")
        )
        self._accepted_files = tuple(
            SealedFile(directory / name, Accepted, limit_bytes=MAX_BYTES)
            for name in ("accepted.json", "accepted.copy.json")
        )
        self._begin_anew_with_another_root()
        floors = [_read(file) for file in self._floor_files]
        self._floors = _highest(floors)
        if self._floors != Floors() and None in floors:  # one was damaged
            with contextlib.suppress(StorageError):
                self._keep_floors(self._floors)
        self._trusted = _read(self._trusted_file)
        copies = [_read(file) for file in self._accepted_files]
        self._accepted = next((copy.digests for copy in copies if copy is not None), ())
        self._models: tuple[str, ...] = self._trusted.models if self._trusted else ()
        if self._trusted is None and (self._metadata / f"{TIMESTAMP}.json").exists():
            self._check(self._models)  # the short form was lost

    @property
    def _incoming(self) -> Path:
        return self._directory / "incoming"

    @property
    def _metadata(self) -> Path:
        return self._directory / "metadata"

    @property
    def director(self) -> Role:
        """The keys that may sign desired states, now."""
        return self._trusted.director if self._trusted is not None else NOBODY

    @property
    def fleet_names(self) -> tuple[str, ...]:
        """The name of the fleet."""
        return (self._fleet,)

    @property
    def versions(self) -> MetadataVersions:
        """The versions of what is believed."""
        known = MetadataVersions(root=0)
        if self._trusted is not None and not self._lacks:
            known = self._trusted.versions
        expires_at_s, _ = self._follows
        late = self._not_ordered() or not_timely(
            expires_at_s=expires_at_s, timestamp=None, known=0, clock=self._clocked()
        )
        return msgspec.structs.replace(known, models=self._models, lacks_desired=late is not None)

    @property
    def refused(self) -> str:
        """Why what came last was refused; empty if it was believed."""
        return self._refused

    @property
    def stale(self) -> str | None:
        """Why nothing new is taken because of the metadata's age, or None."""
        return not_fresh(self._trusted, self._clocked())

    @property
    def expires_at_s(self) -> float | None:
        """When what is believed expires, seconds since 1970."""
        return self._trusted.expires_at_s if self._trusted is not None else None

    def unseal(self, data: bytes, *, role: RoleName, payload_type: str) -> bytes:
        """Verify an envelope, and return what was signed.

        A desired state must be signed by the director. An index of a package must be listed, or
        have been listed when it was installed; who signed its envelope does not count.

        Args:
            data: The envelope.
            role: What vouches for it.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope.
            SignatureError: Nothing vouches for it.
        """
        if role == "release":
            return self._listed(read_unverified(data, payload_type=payload_type).payload)
        director = self.director
        if not director.keys:
            raise SignatureError(NOTHING, remedy=WAIT_FOR_IT)
        return unseal(
            data,
            payload_type=payload_type,
            public_keys=director.public_keys(),
            threshold=director.threshold,
        )

    def not_timely(self, expires_at_s: float | None, timestamp: int | None) -> str | None:
        """Return why a desired state may not be taken now because of its age, or None.

        Args:
            expires_at_s: When it expires, seconds since 1970; None if it does not say.
            timestamp: The version of the timestamp that its controller had signed by then.
        """
        return not_timely(
            expires_at_s=expires_at_s,
            timestamp=timestamp,
            known=self._trusted.versions.timestamp if self._trusted is not None else 0,
            clock=self._clocked(),
        )

    def follow(self, envelope: bytes, *, expires_at_s: float | None, timestamp: int | None) -> None:
        """Note which desired state was accepted last, and what it says of its time.

        Args:
            envelope: It, signed.
            expires_at_s: When it expires, seconds since 1970; None if it does not say.
            timestamp: The version of the timestamp that its controller had signed by then.
        """
        self._follows = (expires_at_s, timestamp)
        self._order, self._ordered_by = envelope, self.director

    def later(self, name: str, version: str, sha256: str) -> str | None:
        """Return why a release may not be taken now, or None; it may be another time.

        Args:
            name: Name of the package.
            version: Its version.
            sha256: Its digest.
        """
        clock = self._clocked()
        expires_at_s, timestamp = self._follows
        why = (
            not_fresh(self._trusted, clock)
            or self._not_ordered()
            or not_timely(
                expires_at_s=expires_at_s,
                timestamp=timestamp,
                known=self._trusted.versions.timestamp if self._trusted is not None else 0,
                clock=clock,
            )
        )
        if why is None:
            self.want(name)
            why = not_listed(self._trusted, name, version, sha256, clock)
        if why is not None:
            self.on_missing()
        return why

    def _not_ordered(self) -> str | None:
        """Return why the desired state that is followed counts no more, or None."""
        director = self.director
        if not self._order or director == self._ordered_by:
            return None
        try:
            self.unseal(self._order, role="director", payload_type=DESIRED_PAYLOAD_TYPE)
        except FleetError:
            return "who ordered it may order nothing any more: the device waits for a new order"
        self._ordered_by = director
        return None

    def accept(self, sha256: str, stored: Collection[str]) -> None:
        """Note that a package is put into service: it stays believed as long as it is here.

        Args:
            sha256: Its digest.
            stored: The digests of all packages on this device.

        Raises:
            StorageError: It cannot be saved.
        """
        with self._lock:
            kept = (each for each in self._accepted if each != sha256 and each in stored)
            accepted = (*kept, sha256)[-MAX_ACCEPTED:]
            if accepted != self._accepted:
                self._keep_accepted(accepted)

    def adopt(self, stored: Collection[str]) -> None:
        """Believe what an agent with a trust file had installed, at the first start with metadata.

        Args:
            stored: The digests of all packages on this device.

        Raises:
            StorageError: It cannot be saved.
        """
        if not any(file.path.exists() or file.was_damaged for file in self._accepted_files):
            self._keep_accepted(tuple(sorted(stored))[-MAX_ACCEPTED:])

    def _keep_accepted(self, digests: tuple[str, ...]) -> None:
        for file in self._accepted_files:
            file.write(Accepted(digests=digests))
        self._accepted = digests

    def want(self, model: str) -> None:
        """Take the releases of a model that was ordered into what is known, if they are not."""
        with self._lock:
            if model not in self._models:
                self._models = (*self._models, model)[-MAX_MODELS:]
                self._check(self._models)

    def receive(self, files: Iterable[MetadataFile], *, now: bool = False) -> bool:
        """Check files that have come, and believe them if they are right.

        Where much comes, the check waits for `tick`: each is a process.

        Args:
            files: As they came.
            now: Check at once, whatever came before.

        Returns:
            Whether something newer is believed now.
        """
        with self._lock:
            before = self._trusted
            try:
                with storage_faults("cannot keep the metadata that came"):
                    self._put(files)
            except FleetError as exc:
                self._tell(exc.code, exc.message)
                return False
            self._is_due = True
            if now:
                self._check(self._models)
            else:
                self.tick()
            return self._trusted != before

    def tick(self) -> None:
        """Check what has come, if that is due and not too much was checked of late."""
        if self._trusted is not None and _ends_soon(self._trusted, self._clocked()):
            self.on_missing()
        with self._lock:
            if not self._is_due:
                return
            now_s = self._clock.monotonic_s()
            refill = int((now_s - self._refilled_s) / CHECK_EVERY_S)
            if refill > 0:
                self._checks = min(self._checks + refill, CHECKS)
                self._refilled_s = now_s
            if self._checks > 0:
                self._checks -= 1
                self._check(self._models)

    def _listed(self, payload: bytes) -> bytes:
        """Return the index of a package if something vouches for it.

        Raises:
            SignatureError: Nothing does.
        """
        index = index_from_bytes(payload)
        if index.digest in self._accepted:
            return payload
        named = (index.name, index.version, index.digest)
        with self._lock:
            # The name may be anybody's: it is remembered only if it is right.
            if index.name not in self._models:
                self._check((*self._models, index.name))
            is_listed = self._trusted is not None and self._trusted.lists(*named)
            if is_listed and index.name not in self._models:
                self._models = (*self._models, index.name)[-MAX_MODELS:]
        if not is_listed:
            raise SignatureError(
                f"no trusted list has this package as {index.name}:{index.version}",
                remedy="publish it with the key of its role; then the list comes to the device",
            )
        return payload

    def _put(self, files: Iterable[MetadataFile]) -> None:
        """Put files where the check finds them.

        Raises:
            WireFormatError: One has no possible name, or is too large.
            OSError: The storage failed.
        """
        newest = {file.name: file for file in files}
        if len(newest) > MAX_LISTS + MAX_ROOTS:
            raise WireFormatError("more metadata has come at once than a device can need")
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        for file in newest.values():
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
            # It need not survive a power cut: what is believed is kept elsewhere.
            place.write_bytes(content)

    def _check(self, models: tuple[str, ...]) -> None:
        """Let a process check what has come, and believe what it says of some models."""
        self._is_due = False
        job = Job(
            root=str(self._root),
            trusted=str(self._metadata),
            incoming=str(self._incoming),
            models=models,
            floors=self._floors,
        )
        try:
            outcome = run_check(
                job, self._directory, now_s=self._clock.now_s(), grace_s=self._grace_s
            )
            self._believe(outcome)
        except StorageError as exc:
            self._tell(exc.code, exc.message)

    def _believe(self, outcome: Outcome) -> None:
        """Take over what was checked.

        Raises:
            StorageError: It cannot be saved; what was believed before holds.
        """
        self._lacks = outcome.trusted is None or bool(outcome.missing)
        if outcome.trusted is None:
            if outcome.code != "missing":  # then the rest may still come
                self._tell(f"trust.{outcome.code}", outcome.fault)
                self._clear()
        else:
            if outcome.floors != self._floors:
                self._keep_floors(outcome.floors)
                self._floors, self._floor_since_s = outcome.floors, self._clock.monotonic_s()
            if outcome.trusted != self._trusted:
                self._trusted_file.write(outcome.trusted)
                self._announce(outcome.trusted)
                self._trusted = outcome.trusted
            if outcome.fault:
                self._tell(f"trust.{outcome.code}", outcome.fault)
            elif self._refused:
                self._refused = ""
                self._events.event("trust", "the metadata that came now is trusted", {})
            self._clear()
        if self._lacks:
            self.on_missing()

    def _keep_floors(self, floors: Floors) -> None:
        for file in self._floor_files:
            file.write(floors)

    def _begin_anew_with_another_root(self) -> None:
        """Forget what was believed by another root than the one that the device has now.

        An operator replaces the root where nothing else helps: most of its keys were stolen, or
        lost.
        What was installed stays believed.
        """
        origin = self._directory / "origin"
        with storage_faults("cannot read the root of the metadata"):
            root = self._root.read_bytes()
            known = origin.read_bytes().decode(errors="replace") if origin.exists() else ""
            if known == sha256_hex(root):
                return
            history = (self._metadata / "root_history").glob("*.json")
            # A file that is damaged says nothing of another root.
            if is_digest(known) and root not in [file.read_bytes() for file in history]:
                shutil.rmtree(self._metadata)
                self._metadata.mkdir(mode=0o700)
                for path in (self._trusted_file.path, *(f.path for f in self._floor_files)):
                    path.unlink(missing_ok=True)
            write_atomic(origin, sha256_hex(root).encode(), mode=PRIVATE)

    def _announce(self, trusted: Trusted) -> None:
        before = self._trusted
        if before is None or before.versions.root != trusted.versions.root:
            number = trusted.versions.root
            self._events.event(
                "trust", f"version {number} of the fleet's root is trusted", {"root": number}
            )
        if before is not None and before.director != trusted.director:
            self._events.event("trust", "other keys sign desired states from now on", {})

    def _tell(self, code: str, why: str) -> None:
        if why == self._refused:
            return
        self._refused = why
        self._events.event("trust", f"metadata is refused: {why}", {"code": code})

    def _clear(self) -> None:
        """Remove what was checked."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._incoming)
        with contextlib.suppress(OSError):
            self._incoming.mkdir(mode=0o700, exist_ok=True)

    def _clocked(self) -> Clocked:
        # A clock that stands or lies far behind still tells how long this device has run.
        ran_s = self._clock.monotonic_s() - self._floor_since_s
        floor_s = self._floors.time_s + ran_s if self._floors.time_s else 0.0
        return Clocked(now_s=self._clock.now_s(), floor_s=floor_s, grace_s=self._grace_s)


def _ends_soon(trusted: Trusted, clock: Clocked) -> bool:
    """Tell whether metadata is in the last part of its life: by now a newer timestamp was due."""
    life_s = trusted.expires_at_s - trusted.issued_at_s
    return trusted.expires_at_s - clock.time_s < life_s * LAST_SHARE


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
