"""The record of the installs that the agent keeps on disk, and the floor of its revisions.

```
state.json             the record
state.copy.json        a copy of it, for when the record is damaged
floor.json             the revision below which no desired state is accepted
```

Rules:
- The agent saves the record before it begins the effect that the record announces.
- Floor, copy and record are written in this order, each completely or not at all. Until the record
  is written, the change counts as not saved; a desired state is then sent again. The floor says
  meanwhile which record it replaces, so what a power cut leaves is not taken for an older record.
- The copy is written when more changes than the progress of an install. From an earlier state of
  the same install the agent goes on as after a power cut.
- A damaged file is moved aside, and so is a record that is older than the floor or has no floor
  beside it: somebody may have put it back. If no record is left, nothing is installed from one, the
  package that `current` names goes on serving, and the device takes no desired state that may be a
  recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from agent.errors import StorageError
from agent.install.sealed import SealedFile, WriteFile
from agent.install.states import State
from wire.errors import IntegrityError
from wire.files import write_atomic
from wire.messages import MAX_REVISION, DesiredState, InstallReport, ReleaseRef
from wire.package.index import is_digest

SCHEMA_VERSION = 1
MAX_STATE_BYTES = 1024 * 1024
MAX_FLOOR_BYTES: Final = 4096
STATE_FILE: Final = "state.json"
COPY_FILE: Final = "state.copy.json"
FLOOR_FILE: Final = "floor.json"
UNSEALED_HEAD: Final = b'{"schema_version":1,'
"""How agents without checksums begin a record."""


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

    delayed_s: float = 0.0
    """For how long hooks have delayed this install."""

    target: ReleaseRef | None = None
    rollout: str | None = None
    """Rollout of `target`. Another rollout is another install, even of the same package."""

    has_sources: bool = False
    """Whether the controller that ordered `target` has other sources than messages."""

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


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept apart from the record."""

    schema_version: int = SCHEMA_VERSION
    revision: int
    """Of the desired state that was accepted last."""

    replaces: int | None = None
    """Revision of the record that is being replaced; None as soon as the new one is written."""


K = TypeVar("K", AgentState, Floor)


class StateStore(Protocol):
    """A place for the agent's state."""

    @property
    def state(self) -> AgentState:
        """The state that was saved last."""
        ...

    @property
    def floor(self) -> int:
        """The revision below which no desired state is accepted; 0 if none was accepted."""
        ...

    @property
    def lost(self) -> bool:
        """Whether this device accepted a desired state once and has lost the record of it."""
        ...

    def update(self, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of AgentState
        """Change fields and save them before returning."""
        ...


class FileStateStore:
    """The agent's state in a directory.

    Args:
        directory: The directory; the first save makes the files.
        used: Whether something else shows that a desired state was accepted, such as a package.
        write: Writes a file completely or not at all.
    """

    def __init__(
        self, directory: Path, *, used: bool = False, write: WriteFile = write_atomic
    ) -> None:
        self._record = SealedFile(
            directory / STATE_FILE,
            AgentState,
            limit_bytes=MAX_STATE_BYTES,
            unsealed_head=UNSEALED_HEAD,
            write=write,
        )
        self._copy = SealedFile(
            directory / COPY_FILE, AgentState, limit_bytes=MAX_STATE_BYTES, write=write
        )
        self._floor_file = SealedFile(
            directory / FLOOR_FILE, Floor, limit_bytes=MAX_FLOOR_BYTES, write=write
        )
        self._lock = threading.Lock()
        self._wrong: dict[str, str] = {}
        """By the name of a file that is not used: what is wrong with it."""

        found = {file: self._read(file) for file in (self._record, self._copy)}
        floor = self._read(self._floor_file)
        self._floor = max(_newest(found.values()).revision, floor.revision if floor else 0)
        self._is_first = floor is not None and floor.replaces == 0
        # An agent that knew no checksums knew no floor either, and left the record alone.
        has_others = any((floor, found[self._copy], self._wrong))
        has_floor = has_others or self._record.is_sealed
        kept = {
            file: self._believed(file, value, floor, has_floor=has_floor)
            for file, value in found.items()
        }
        self._state = _newest(kept.values())
        if not any(kept.values()):
            self._state = _remnant(_newest(found.values()))
        files = (self._record, self._copy, self._floor_file)
        self._used = used or bool(self._wrong) or any(file.was_damaged for file in files)
        self._mend(kept[self._record], kept[self._copy], floor)

    @property
    def state(self) -> AgentState:
        """The state that was saved last."""
        return self._state

    @property
    def floor(self) -> int:
        """The revision below which no desired state is accepted; 0 if none was accepted."""
        return self._floor

    @property
    def lost(self) -> bool:
        """Whether this device accepted a desired state once and has lost the record of it."""
        # A power cut at the first save leaves only the floor; nothing is lost by that.
        used = self._used or (self._floor > 0 and not self._is_first)
        return used and self._state.revision == 0

    @property
    def faults(self) -> tuple[str, ...]:
        """What was wrong with the files when they were read, each as a line for the operator."""
        if not self.lost:
            return tuple(
                f"{name} was {why}; what the other files hold is used"
                for name, why in self._wrong.items()
            )
        which = ", ".join(f"{name}: {why}" for name, why in self._wrong.items())
        line = (
            f"the record of the installs is lost{which and f' ({which})'}; the device serves what "
            "it has, and takes only a desired state that the controller signs after this start"
        )
        return (line,)

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
            if changed == self._state:
                return changed
            is_newer = changed.revision != self._state.revision
            if is_newer:
                replaced = self._state.revision
                self._floor_file.write(Floor(revision=changed.revision, replaces=replaced))
                self._floor = changed.revision
            if _lasting(changed) != _lasting(self._state):
                self._copy.write(changed)
            self._record.write(changed)
            self._state = changed
            if is_newer:
                with contextlib.suppress(StorageError):  # the next start does it
                    self._floor_file.write(Floor(revision=changed.revision))
            return changed

    def _read(self, file: SealedFile[K]) -> K | None:
        """Return what a file holds, or None if there is none or it is damaged."""
        with contextlib.suppress(IntegrityError):
            value = file.read()
            if value is None or _is_possible(value):
                return value
        self._set_aside(file, "damaged")
        return None

    def _believed(
        self,
        file: SealedFile[AgentState],
        value: AgentState | None,
        floor: Floor | None,
        *,
        has_floor: bool,
    ) -> AgentState | None:
        """Return a record that is used, or None after moving aside one that may be put back."""
        if value is None or value.revision == 0 or not has_floor:
            return value
        if floor is None:
            self._set_aside(file, f"beside no {FLOOR_FILE}")
            return None
        if value.revision < floor.revision and value.revision != floor.replaces:
            self._set_aside(file, f"older than {FLOOR_FILE}")
            return None
        return value

    def _set_aside(self, file: SealedFile[Any], why: str) -> None:
        self._wrong[file.path.name] = why
        file.set_aside()

    def _mend(
        self, record: AgentState | None, copy: AgentState | None, floor: Floor | None
    ) -> None:
        """Write again what is missing, damaged or older; a read-only disk stays as it is."""
        if self._state == AgentState():
            return
        settled = Floor(revision=self._floor)
        if floor == Floor(revision=self._floor, replaces=self._state.revision):
            settled = floor  # the newer record has not been saved
        with contextlib.suppress(StorageError):
            if floor != settled and self._state.revision > 0:
                self._floor_file.write(settled)
            if copy is None or _lasting(copy) != _lasting(self._state):
                self._copy.write(self._state)
            # Without a copy the record may be of an agent that knew no checksums.
            if copy is None or record != self._state:
                self._record.write(self._state)


def _is_possible(value: AgentState | Floor) -> bool:
    if value.schema_version != SCHEMA_VERSION or not 0 <= value.revision <= MAX_REVISION:
        return False
    if isinstance(value, Floor):
        return True
    target = value.target
    digests = (value.previous, *((target.digest, target.envelope_sha256) if target else ()))
    return all(digest is None or is_digest(digest) for digest in digests)


def _newest(records: Iterable[AgentState | None]) -> AgentState:
    """Return the newer record; of the same revision the first; without any that of a new device."""
    found = [each for each in records if each is not None]
    return max(found, key=lambda each: each.revision, default=AgentState())


def _remnant(record: AgentState) -> AgentState:
    """Return what a record that may be too old still tells: nothing that an install begins with."""
    return AgentState(
        desired=record.desired,  # its policy holds until the controller answers
        previous=record.previous,
        dropped=record.dropped,
        latencies_ms=record.latencies_ms,
        pinned=record.pinned,
    )


def has_served(record: AgentState) -> bool:
    """Tell whether the present target has served on this device, whatever became of it since."""
    report, target = record.report, record.target
    if report is None or target is None or report.digest != target.digest:
        return False
    return record.repairing or report.outcome == "succeeded"


def outcome_of(record: AgentState, desired: DesiredState) -> InstallReport | None:
    """Return the outcome of a desired state; None if it was never accepted or has none yet."""
    report = record.report
    if report is None or report.revision != record.revision:
        return None
    # Without a rollout two installs of the same package cannot be told apart.
    same_install = desired.rollout is not None and (desired.release, desired.rollout) == (
        record.target,
        record.rollout,
    )
    return report if same_install or desired.revision == record.revision else None


def _lasting(record: AgentState) -> AgentState:
    """Return a record without the progress of its install, which can be made again."""
    return msgspec.structs.replace(record, state=State.IDLE, attempts=0, delayed_s=0.0)
