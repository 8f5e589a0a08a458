"""What the agent must remember: durable files and the record of the install.

Rules:
- A file is old or new, never half: temporary file, fsync, rename, fsync of the directory.
- The record is saved before the effect that it announces.
- A record that cannot be read is moved aside; the agent then starts from what `current` says.

Source:
    Pillai et al. 2014, "All File Systems Are Not Created Equal", on what survives a power cut.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agent.errors import storage_faults
from agent.install.states import State
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.messages import InstallReport, ReleaseRef

SCHEMA_VERSION = 1
MAX_STATE_BYTES = 1024 * 1024
PRIVATE = 0o600


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an install did not come to its end."""

    phase: State
    code: str
    detail: str


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """All that outlives a restart, apart from the packages themselves."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    """Of the desired state that was accepted last."""

    desired: bytes = b""
    """Its signed envelope."""

    state: State = State.IDLE
    attempts: int = 0
    """How often the effect of `state` was begun without coming to its end."""

    target: ReleaseRef | None = None
    rollout: str | None = None
    """For which `target` was ordered: another one is another order, even of the same package."""

    previous: str | None = None
    """Digest of the package that served before, to which a failed install returns."""

    failure: Failure | None = None
    abandoned: bool = False
    """A newer desired state ended this install; nothing is reported for it."""

    dropped: dict[str, dict[str, str]] = {}
    """By package digest: variants that failed their golden test here, and why."""

    latencies_ms: dict[str, dict[str, float]] = {}
    """By package digest: what each variant took here in its golden test."""

    report: InstallReport | None = None
    """The outcome of the last install, sent again when its desired state comes again."""

    pinned: str | None = None
    """Variant that the operator pinned on this device."""


class StateStore(Protocol):
    """A place for the agent's state."""

    @property
    def state(self) -> AgentState:
        """What was saved last."""
        ...

    def update(self, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of AgentState
        """Change fields and save them before returning."""
        ...


class FileStateStore:
    """The agent's state in one file.

    Args:
        path: Of the file; made at the first save.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state, self.recovered = _load(path)

    @property
    def state(self) -> AgentState:
        """What was saved last."""
        return self._state

    def update(self, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of AgentState
        """Change fields and save them before returning.

        Args:
            **changes: New values of fields of `AgentState`.

        Returns:
            The state as saved.

        Raises:
            StorageError: It could not be saved; the state in memory is unchanged.
        """
        with self._lock:
            changed = msgspec.structs.replace(self._state, **changes)
            if changed != self._state:
                write_atomic(self._path, to_json(changed))
                self._state = changed
            return changed


def write_atomic(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that a power cut at any point leaves the old or the new one.

    Args:
        path: Of the file.
        data: Its new content.
        mode: Its permissions.

    Raises:
        StorageError: The device refused; the old file is still there.
    """
    temporary = path.with_name(f".{path.name}.new")
    with storage_faults(f"cannot write {path.name}"), _removed_on_fault(temporary):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)


@contextlib.contextmanager
def _removed_on_fault(temporary: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(directory: Path) -> None:
    """Make a directory that only the agent may enter.

    Args:
        directory: To be made, with its parents.

    Raises:
        StorageError: It cannot be made.
    """
    with storage_faults(f"cannot make the directory {directory.name}"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _load(path: Path) -> tuple[AgentState, bool]:
    """Read the record; a new one, and True, when what is there cannot be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return AgentState(), False
    except OSError:
        data = b""
    try:
        state = from_json(data, AgentState, limit_bytes=MAX_STATE_BYTES)
    except WireFormatError:
        state = None
    if state is not None and state.schema_version == SCHEMA_VERSION:
        return state, False
    with storage_faults("cannot move a corrupt state file aside"):
        path.replace(path.with_name(f"{path.name}.corrupt"))
    return AgentState(), True
