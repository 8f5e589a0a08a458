"""Takes a package that the operator hands over as a file, and the desired state that may be in it.

Rules:
- The signature of a package says who built it, not that this device shall run it. So the package is
  stored, and only a desired state that the director signed for this device begins its install: one
  that came over MQTT, or one in the file, with the same checks.
- A desired state in the file that is older than the accepted one is not taken; the package is.
- The install thread does the work at its next safe point, so an install that waits for the files
  goes on at once.
- A newer desired state for something else ends the work at the next part of the file: an order does
  not wait for a slow stick. What came is kept.
"""

from __future__ import annotations

from typing import Any

from agent.app.control import Pull
from agent.app.desired_states import DesiredStates
from agent.errors import ControlError, RefusedError
from agent.install.preload import Preload
from agent.install.store import StateStore
from agent.install.thread import Installs
from agent.interrupts import Interrupts
from agent.log import Log
from wire.codec import sha256_hex, to_builtins
from wire.errors import FleetError
from wire.messages import DesiredState
from wire.package.archive import AGAIN, Archive


class _ClientFile:
    """The file at the other end of the control socket."""

    def __init__(self, size_bytes: int, pull: Pull, installs: Installs) -> None:
        self.size_bytes = size_bytes
        self.digest = ""
        """The package in it, as soon as it is known."""

        self._pull = pull
        self._installs = installs

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of it.

        Raises:
            ControlError: The client sends it no more, or a newer desired state waits.
        """
        newer = self._installs.newer
        if newer is not None and (newer.release is None or newer.release.digest != self.digest):
            raise ControlError(
                f"revision {newer.revision} of the desired state has come and goes first",
                remedy="give the command again when its install has ended; the files that have "
                "come are kept",
            )
        return self._pull(offset, length)


class ByHand:
    """Takes packages as files.

    Args:
        preload: Stores them.
        desired_states: Checks and takes desired states.
        installs: Knows which desired state waits.
        store: Knows what the device should run.
        interrupts: Lets the install thread do the work.
        log: Takes a line for each package.
    """

    def __init__(
        self,
        preload: Preload,
        *,
        desired_states: DesiredStates,
        installs: Installs,
        store: StateStore,
        interrupts: Interrupts,
        log: Log,
    ) -> None:
        self._preload = preload
        self._desired_states = desired_states
        self._installs = installs
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
            answer.update(self._take(_ClientFile(size_bytes, pull, self._installs)))

        self._interrupts.interject(work, lambda: _still_there(pull))
        return answer

    def _take(self, file: _ClientFile) -> dict[str, Any]:
        archive = self._preload.open(file)
        file.digest = archive.index.digest
        desired = None if archive.desired is None else self._assigned(archive, archive.desired)
        stored = self._preload.store(file, archive)
        taken, why_not = False, ""
        if desired is not None and archive.desired is not None:
            try:
                self._desired_states.offer(desired, archive.desired)
                taken = True
            except FleetError as exc:
                why_not = exc.message
        target = self._store.state.target
        self._log.write("by-hand", release=stored.release, stored_bytes=stored.stored_bytes)
        plain: dict[str, Any] = to_builtins(stored)
        return plain | {
            "revision": desired.revision if desired is not None and taken else None,
            "not_taken": why_not,
            "is_target": taken or (target is not None and target.digest == stored.digest),
        }

    def _assigned(self, archive: Archive, envelope: bytes) -> DesiredState:
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
        release = desired.release
        signed = (archive.index.digest, sha256_hex(archive.envelope))
        if release is None or (release.digest, release.envelope_sha256) != signed:
            raise RefusedError(
                "the desired state in the package file names another package", remedy=AGAIN
            )
        return desired


def _still_there(pull: Pull) -> None:
    pull(0, 0)
