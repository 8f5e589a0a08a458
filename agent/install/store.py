"""The record of the install that the agent keeps on disk.

Rules:
- The agent saves the record before it begins the effect that the record announces.
- The agent moves a record aside if it cannot read it, and then starts from what `current` names.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agent.errors import storage_faults
from agent.install.states import State
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import write_atomic
from wire.messages import InstallReport, ReleaseRef

SCHEMA_VERSION = 1
MAX_STATE_BYTES = 1024 * 1024


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an install failed."""

    phase: State
    code: str
    detail: str


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that survives a restart, apart from the packages."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    """Revision of the desired state that was accepted last."""

    desired: bytes = b""
    """Its signed envelope."""

    state: State = State.IDLE
    attempts: int = 0
    """How often the effect of `state` was begun without progress."""

    target: ReleaseRef | None = None
    rollout: str | None = None
    """Rollout of `target`. Another rollout is another install, even of the same package."""

    previous: str | None = None
    """Digest of the package that served before, to which a failed install returns."""

    repairing: bool = False
    """Whether `target` served before: the install brings back what was lost or damaged of it."""

    failure: Failure | None = None
    abandoned: bool = False
    """A newer desired state ended this install; nothing is reported for it."""

    dropped: dict[str, dict[str, str]] = {}
    """By package digest: variants that failed their golden test on this device, and why."""

    latencies_ms: dict[str, dict[str, float]] = {}
    """By package digest: the latency of each variant in its golden test on this device."""

    report: InstallReport | None = None
    """The outcome of the last install, sent again when its desired state comes again."""

    pinned: str | None = None
    """Variant that the operator pinned on this device."""


class StateStore(Protocol):
    """A place for the agent's state."""

    @property
    def state(self) -> AgentState:
        """The state that was saved last."""
        ...

    def update(self, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of AgentState
        """Change fields and save them before returning."""
        ...


class FileStateStore:
    """The agent's state in one file.

    Args:
        path: Path of the file; the first save makes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state, self.recovered = _load(path)

    @property
    def state(self) -> AgentState:
        """The state that was saved last."""
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
                with storage_faults(f"cannot write {self._path.name}"):
                    write_atomic(self._path, to_json(changed))
                self._state = changed
            return changed


def _load(path: Path) -> tuple[AgentState, bool]:
    """Read the record; return a new one, and True, if the file cannot be used."""
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
    with contextlib.suppress(OSError):  # a read-only disk keeps it
        path.replace(path.with_name(f"{path.name}.corrupt"))
    return AgentState(), True
