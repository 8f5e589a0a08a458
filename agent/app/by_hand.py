"""Takes a package that the operator hands over as a file, and the desired state that may be in it.

Rules:
- The signature of a package says who built it, not that this device shall run it. So the package is
  stored, and only a desired state that the director signed for this device begins its install: one
  that came over MQTT, or one in the file, with the same checks.
- A desired state in the file that is older than the accepted one is not taken; the package is.
- The work is done at the next safe point of an install, and one that waits for the files goes on at
  once.
- A newer desired state for something else ends the work at the next part of the file: an order does
  not wait for a slow stick. What came is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from agent.app.control import Pull
from agent.app.desired_states import DesiredStates
from agent.app.models import Pending
from agent.errors import ControlError, RefusedError
from agent.install.preload import Preload
from agent.install.records import runs_now
from agent.install.store import StateStore
from agent.interrupts import Interrupts
from agent.log import Log
from agent.trust.keeper import MetadataTrust
from wire.codec import sha256_hex, to_builtins
from wire.desired import DesiredModels
from wire.errors import FleetError
from wire.metadata import MAX_SET_BYTES, metadata_from
from wire.package.archive import AGAIN, Archive

STEP_BYTES: Final = 256 * 1024


class _ClientFile:
    """The file at the other end of the control socket."""

    def __init__(
        self, size_bytes: int, pull: Pull, pending: Callable[[], Sequence[Pending]]
    ) -> None:
        self.size_bytes = size_bytes
        self.digest = ""
        """The package in it, as soon as it is known."""

        self._pull = pull
        self._pending = pending
        self._before = frozenset(pending())

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of it.

        Raises:
            ControlError: The client sends it no more, or a newer desired state waits.
        """
        for newer in self._pending():
            if newer in self._before or newer.digest == self.digest:
                continue
            raise ControlError(
                f"revision {newer.revision} of model {newer.model} has come and goes first",
                remedy="give the command again when its install has ended; the files that have "
                "come are kept",
            )
        return self._pull(offset, length)


class ByHand:
    """Takes packages as files.

    Args:
        preload: Stores them.
        desired_states: Checks and takes desired states.
        pending: Returns what is being installed, or waits to be.
        store: Knows what the device should run.
        interrupts: Let the work be done before an install goes on.
        log: Takes a line for each package.
        trust: Takes trusted metadata; None where a trust file takes its place.
    """

    def __init__(
        self,
        preload: Preload,
        *,
        desired_states: DesiredStates,
        pending: Callable[[], Sequence[Pending]],
        store: StateStore,
        interrupts: Interrupts,
        log: Log,
        trust: MetadataTrust | None = None,
    ) -> None:
        self._trust = trust
        self._preload = preload
        self._desired_states = desired_states
        self._pending = pending
        self._store = store
        self._interrupts = interrupts
        self._log = log

    def install(self, arguments: dict[str, Any], pull: Pull) -> dict[str, Any]:
        """Store a package; take the desired state in its file, if there is one.

        Args:
            arguments: The size of the file.
            pull: Reads the file.

        Returns:
            What was stored, and what becomes of it.

        Raises:
            ControlError: The arguments are wrong, or the client has gone.
            FleetError: The package was refused, or could not be stored.
        """
        size_bytes = arguments.get("size_bytes")
        if type(size_bytes) is not int or size_bytes < 0:
            raise ControlError("size_bytes is not a number of bytes")
        answer: dict[str, Any] = {}

        def work() -> None:
            answer.update(self._take(_ClientFile(size_bytes, pull, self._pending)))

        self._interrupts.interject(work, lambda: _still_there(pull))
        return answer

    def metadata(self, arguments: dict[str, Any], pull: Pull) -> dict[str, Any]:
        """Take trusted metadata that the operator brings as a file.

        Args:
            arguments: The size of the file.
            pull: Reads the file.

        Returns:
            Whether something newer is believed now, and why not.

        Raises:
            ControlError: The arguments are wrong, or the device has a trust file.
            WireFormatError: The file holds no metadata.
        """
        size_bytes = arguments.get("size_bytes")
        if type(size_bytes) is not int or not 0 <= size_bytes <= MAX_SET_BYTES:
            raise ControlError(
                "the file is no metadata", remedy="bring a file of `fleet key export`"
            )
        if self._trust is None:
            raise ControlError(
                "this device has a trust file, whose keys never change",
                remedy="name the fleet's root.json as `trust` in agent.toml",
            )
        steps = range(0, size_bytes, STEP_BYTES)
        data = b"".join(pull(at, min(STEP_BYTES, size_bytes - at)) for at in steps)
        is_newer = self._trust.receive(metadata_from(data), now=True)
        return {
            "newer": is_newer,
            "refused": self._trust.refused,
            "root": self._trust.versions.root,
            "expires_at_s": self._trust.expires_at_s,
            "stale": self._trust.stale,
        }

    def _take(self, file: _ClientFile) -> dict[str, Any]:
        archive = self._preload.open(file)
        file.digest = archive.index.digest
        desired = None if archive.desired is None else self._assigned(archive, archive.desired)
        stored = self._preload.store(file, archive)
        runs = any(runs_now(record, stored.digest) for record in self._store.state.models.values())
        taken, why_not = False, ""
        if desired is not None and archive.desired is not None:
            try:
                self._desired_states.offer(desired, archive.desired)
                taken = True
            except FleetError as exc:
                why_not = exc.message
        records = self._store.state.models.values()
        targets = {record.target.digest for record in records if record.target is not None}
        self._log.write("by-hand", release=stored.release, stored_bytes=stored.stored_bytes)
        plain: dict[str, Any] = to_builtins(stored)
        return plain | {
            "revision": desired.revision if desired is not None and taken else None,
            "not_taken": why_not,
            "is_target": taken or stored.digest in targets,
            "runs": runs,
        }

    def _assigned(self, archive: Archive, envelope: bytes) -> DesiredModels:
        """Return the desired state in a file.

        Raises:
            RefusedError: It is for another device or another package.
            FleetError: The director has not signed it, or it is malformed.
        """
        try:
            desired = self._desired_states.read(envelope)
        except RefusedError as exc:
            raise RefusedError(
                f"the package file was made for another device: {exc.message}",
                remedy="export it with --device and the name of this device, or without --device",
            ) from exc
        releases = [model.release for model in desired.models if model.release is not None]
        signed = (archive.index.digest, sha256_hex(archive.envelope))
        if signed not in {(release.digest, release.envelope_sha256) for release in releases}:
            raise RefusedError(
                "the desired state in the package file names another package", remedy=AGAIN
            )
        return desired


def _still_there(pull: Pull) -> None:
    pull(0, 0)
