"""Keeps the fleet's trusted metadata on this device, and answers whom to believe by it.

Rules:
- Nothing that came is believed before the process that checks it has said so. A set that is wrong
  changes nothing, and is told.
- What is new waits until the metadata is fresh and lists it. What was installed goes on, listed or
  not: a list that is withheld, or a key that is taken back, stops no device.
- Floors are saved before what raised them is believed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import StorageError
from agent.ports import RecorderPort
from agent.trust.floors import versions_of
from agent.trust.job import Outcome
from agent.trust.kept import KeptFiles
from agent.trust.known_time import KnownTime
from agent.trust.order import NOBODY, Order
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
from wire.errors import FleetError, SignatureError
from wire.metadata import MetadataFile, MetadataVersions
from wire.package.index import index_from_bytes
from wire.token_bucket import TokenBucket
from wire.trust.envelope import read_unverified
from wire.trust.root import Role, RoleName

MAX_ACCEPTED: Final = 256
MAX_MODELS: Final = 64
CHECKS: Final = 8
"""How many checks may follow each other; one more comes each `CHECK_EVERY_S`."""

CHECK_EVERY_S: Final = 5.0
LAST_SHARE: Final = 1 / 8
"""When so much of its life is left, the device asks for newer: what was sent may have been lost."""

WAIT_FOR_IT: Final = "connect the device with its controller, or bring newer metadata by file"


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
        self._fleet = fleet
        self._events = events
        self._clock = clock
        self._grace_s = grace_s
        self.on_missing = on_missing
        self._lock = threading.RLock()
        self._refused = ""
        self._lacks = False
        """Whether the last check failed. What is on the disk may be damaged then, so the device
        asks for everything."""

        self._stays = False
        """Whether what came last stays until something else comes: it was handed over before
        anybody asked for the lists in it, and comes only once."""

        self._turns = TokenBucket(1 / CHECK_EVERY_S, CHECKS, clock.monotonic_s())
        self._is_due = False
        self._order = Order()
        self._kept = KeptFiles(root, directory)
        self._time = KnownTime(self._kept, clock, grace_s)
        trusted = self._kept.trusted
        self._models: tuple[str, ...] = trusted.models if trusted is not None else ()
        if trusted is None and self._kept.has_metadata:
            self._check(self._models)  # the short form was lost

    @property
    def _trusted(self) -> Trusted | None:
        return self._kept.trusted

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
        trusted = self._trusted
        known = trusted.versions if trusted is not None else versions_of(self._kept.floors)
        # Its timestamp does not count here: what it waits for comes with the answer.
        late = self._order.not_by(self.director) or self.not_timely(self._order.expires_at_s, None)
        return msgspec.structs.replace(
            known,
            fleet=self._fleet,
            models=self._models,
            lacks_desired=late is not None,
            lacks_files=True if trusted is None or self._lacks else msgspec.UNSET,
        )

    @property
    def refused(self) -> str:
        """Why what came last was refused; empty if it was believed."""
        return self._refused

    @property
    def stale(self) -> str | None:
        """Why nothing new is taken because of the metadata's age, or None."""
        return not_fresh(self._trusted, self._time.now())

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
            if self._refused:  # waiting does not help
                raise SignatureError(f"{NOTHING}; what came is refused: {self._refused}")
            raise SignatureError(NOTHING, remedy=WAIT_FOR_IT)
        return director.unseal(data, payload_type)

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
            clock=self._time.now(),
        )

    def follow(self, envelope: bytes, *, expires_at_s: float | None, timestamp: int | None) -> None:
        """Note which desired state was accepted last, and what it says of its time.

        Args:
            envelope: It, signed.
            expires_at_s: When it expires, seconds since 1970; None if it does not say.
            timestamp: The version of the timestamp that its controller had signed by then.
        """
        self._order = Order(envelope, self.director, expires_at_s, timestamp)

    def doubt(self, envelope: bytes) -> None:
        """Note a stored desired state that could not be used: nothing new is taken by it.

        Args:
            envelope: It, as it was accepted once.
        """
        self._order = Order(envelope)

    def later(self, name: str, version: str, sha256: str) -> str | None:
        """Return why a release may not be taken now, or None; it may be another time.

        Args:
            name: Name of the package.
            version: Its version.
            sha256: Its digest.
        """
        order = self._order
        why = (
            self.stale
            or order.not_by(self.director)
            or self.not_timely(order.expires_at_s, order.timestamp)
        )
        if why is None:
            self.want(name)
            why = not_listed(self._trusted, name, version, sha256, self._time.now())
        if why is not None:
            self.on_missing()
        return why

    def accept(self, sha256: str, stored: Collection[str]) -> None:
        """Note that a package is put into service: it stays believed as long as it is here.

        Args:
            sha256: Its digest.
            stored: The digests of all packages on this device.

        Raises:
            StorageError: It cannot be saved.
        """
        with self._lock:
            kept = (each for each in self._kept.accepted if each != sha256 and each in stored)
            accepted = (*kept, sha256)[-MAX_ACCEPTED:]
            if accepted != self._kept.accepted:
                self._kept.keep_accepted(accepted)

    def adopt(self, stored: Collection[str]) -> None:
        """Believe what an agent with a trust file had installed, at the first start with metadata.

        Args:
            stored: The digests of all packages on this device.

        Raises:
            StorageError: It cannot be saved.
        """
        if self._kept.is_new:
            self._kept.keep_accepted(tuple(sorted(stored))[-MAX_ACCEPTED:])

    def want(self, *models: str) -> None:
        """Take the releases of models that are here, or were ordered, into what is known."""
        with self._lock:
            more = tuple(model for model in models if model not in self._models)
            if more:
                self._models = (*self._models, *more)[-MAX_MODELS:]
                self._check(self._models)

    def receive(self, files: Iterable[MetadataFile], *, now: bool = False) -> bool:
        """Check files that have come, and believe them if they are right.

        Where much comes, the check waits for `tick`: each is a process.

        Args:
            files: As they came.
            now: Check at once, and keep the files for lists that are asked for later.

        Returns:
            Whether something newer is believed now.
        """
        with self._lock:
            before = self._trusted
            if self._stays and not self._lacks:
                self._kept.clear()
            self._stays = now
            try:
                self._kept.put(files)
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
        if self._trusted is not None and _ends_soon(self._trusted, self._time.now()):
            self.on_missing()
        if self._time.is_due:
            self.note_time()
        with self._lock:
            if self._is_due and self._turns.take(self._clock.monotonic_s()):
                self._check(self._models)

    def _listed(self, payload: bytes) -> bytes:
        """Return the index of a package if something vouches for it.

        Raises:
            SignatureError: Nothing does.
        """
        index = index_from_bytes(payload)
        if index.digest in self._kept.accepted:
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

    def _check(self, models: tuple[str, ...]) -> None:
        """Let a process check what has come, and believe what it says of some models."""
        self._is_due = False
        try:
            job, folder = self._kept.job(models), self._kept.directory
            outcome = run_check(job, folder, now_s=self._clock.now_s(), grace_s=self._grace_s)
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
                self._kept.clear()
        else:
            if outcome.floors != self._kept.floors:
                self._time.keep_floors(outcome.floors)
            before = self._trusted
            if outcome.trusted != before:
                self._kept.keep_trusted(outcome.trusted)
                self._announce(before, outcome.trusted)
            if outcome.fault:
                self._tell(f"trust.{outcome.code}", outcome.fault)
            elif self._refused:
                self._refused = ""
                self._events.event("trust", "the metadata that came now is trusted", {})
            if not self._stays:
                self._kept.clear()
        if self._lacks:
            self.on_missing()

    def note_time(self) -> None:
        """Save how much time has passed since something was signed, as when the agent stops."""
        with self._lock:
            self._time.note()

    def _announce(self, before: Trusted | None, trusted: Trusted) -> None:
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


def _ends_soon(trusted: Trusted, clock: Clocked) -> bool:
    """Tell whether metadata is in the last part of its life: by now a newer timestamp was due."""
    life_s = trusted.expires_at_s - trusted.issued_at_s
    return trusted.expires_at_s - clock.time_s < life_s * LAST_SHARE
