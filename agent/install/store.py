"""The record of the installs that the agent keeps on disk, and the floor of its revisions.

```
state.json             the record
state.copy.json        a copy of it, for when the record is damaged
floor.json             the revision below which no desired state is accepted
```

Rules:
- All models of the device have their records in one file, so one floor and one copy hold for all;
  a change of one record leaves the others as they are.
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
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from agent.errors import StorageError
from agent.install.records import (
    NO_RECORD,
    ONE_MODEL,
    AgentState,
    Floor,
    ModelRecord,
    StoredState,
    is_possible,
    lasting,
    newest,
    remnant,
)
from agent.install.states import State
from agent.sealed import SealedFile, WriteFile
from wire.errors import IntegrityError
from wire.files import write_atomic

MAX_STATE_BYTES = 4 * 1024 * 1024
MAX_FLOOR_BYTES: Final = 4096
STATE_FILE: Final = "state.json"
COPY_FILE: Final = "state.copy.json"
FLOOR_FILE: Final = "floor.json"
UNSEALED_HEAD: Final = b'{"schema_version":1,'
"""How agents without checksums begin a record."""


K = TypeVar("K", StoredState, Floor)


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

    def accept(self, revision: int, desired: bytes) -> AgentState:
        """Save which desired state was accepted, before returning."""
        ...

    def update_model(self, name: str, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of ModelRecord
        """Change fields of the record of a model and save them before returning."""
        ...

    def forget(self, name: str) -> AgentState:
        """Save that the device has a model no more, before returning."""
        ...


class ModelStore:
    """The record of one model.

    Args:
        store: That of the device.
        name: Name of the model.
    """

    def __init__(self, store: StateStore, name: str) -> None:
        self._store = store
        self.name = name

    @property
    def state(self) -> ModelRecord:
        """The record that was saved last."""
        return self._store.state.models.get(self.name, NO_RECORD)

    @property
    def install(self) -> tuple[str, int]:
        """What names the present install among those of the device."""
        return self.name, self.state.revision

    @property
    def kept(self) -> frozenset[str]:
        """The digests of packages that any model of the device needs."""
        return self._store.state.wanted

    @property
    def kept_elsewhere(self) -> frozenset[str]:
        """The digests of packages that other models of the device need."""
        return AgentState(models=self._others).wanted

    @property
    def is_alone(self) -> bool:
        """Whether no other model of the device has an install under way."""
        return all(record.state is State.IDLE for record in self.elsewhere)

    @property
    def elsewhere(self) -> tuple[ModelRecord, ...]:
        """The records of the other models of the device."""
        return tuple(self._others.values())

    @property
    def _others(self) -> dict[str, ModelRecord]:
        models = self._store.state.models
        return {name: record for name, record in models.items() if name != self.name}

    def update(self, **changes: Any) -> ModelRecord:  # noqa: ANN401 - fields of ModelRecord
        """Change fields and save them before returning.

        Args:
            **changes: New values of fields of `ModelRecord`.

        Returns:
            The record as saved.

        Raises:
            StorageError: It could not be saved; the record in memory is unchanged.
        """
        return self._store.update_model(self.name, **changes).models[self.name]

    def forget(self) -> None:
        """Save that the device has the model no more, before returning.

        Raises:
            StorageError: It could not be saved; the record in memory is unchanged.
        """
        self._store.forget(self.name)


class FileStateStore:
    """The agent's state in a directory.

    Args:
        directory: The directory; the first save makes the files.
        used: Whether something else shows that a desired state was accepted, such as a package.
        served: Name of the model that an agent with one model served last; None if nobody knows.
        write: Writes a file completely or not at all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        used: bool = False,
        served: str | None = None,
        write: WriteFile = write_atomic,
    ) -> None:
        self._served = served
        self._record = SealedFile(
            directory / STATE_FILE,
            StoredState,
            limit_bytes=MAX_STATE_BYTES,
            unsealed_head=UNSEALED_HEAD,
            write=write,
        )
        self._copy = SealedFile(
            directory / COPY_FILE, StoredState, limit_bytes=MAX_STATE_BYTES, write=write
        )
        self._floor_file = SealedFile(
            directory / FLOOR_FILE, Floor, limit_bytes=MAX_FLOOR_BYTES, write=write
        )
        self._lock = threading.Lock()
        self._is_named_now = False
        """Whether a record has got its name from `served`: the next start may not know it."""

        self._wrong: dict[str, str] = {}
        """By the name of a file that is not used: what is wrong with it."""

        found = {file: self._read_record(file) for file in (self._record, self._copy)}
        floor = self._read(self._floor_file)
        self._floor = max(newest(found.values()).revision, floor.revision if floor else 0)
        self._is_first = floor is not None and floor.replaces == 0
        # An agent that knew no checksums knew no floor either, and left the record alone.
        has_others = any((floor, found[self._copy], self._wrong))
        has_floor = has_others or self._record.is_sealed
        kept = {
            file: self._believed(file, value, floor, has_floor=has_floor)
            for file, value in found.items()
        }
        self._state = newest(kept.values())
        if not any(kept.values()):
            self._state = remnant(newest(found.values()))
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

    def accept(self, revision: int, desired: bytes) -> AgentState:
        """Save which desired state was accepted, before returning.

        Args:
            revision: Its revision.
            desired: Its signed form.

        Returns:
            The state as saved.

        Raises:
            StorageError: It could not be saved; the state in memory is unchanged.
        """
        with self._lock:
            return self._save(
                msgspec.structs.replace(self._state, revision=revision, desired=desired)
            )

    def update_model(self, name: str, **changes: Any) -> AgentState:  # noqa: ANN401 - fields of ModelRecord
        """Change fields of the record of a model and save them before returning.

        Args:
            name: The model; one that is not known yet gets a record.
            **changes: New values of fields of `ModelRecord`.

        Returns:
            The state as saved.

        Raises:
            StorageError: It could not be saved; the state in memory is unchanged.
        """
        with self._lock:
            models = self._state.models
            record = msgspec.structs.replace(models.get(name, NO_RECORD), **changes)
            return self._save(msgspec.structs.replace(self._state, models={**models, name: record}))

    def forget(self, name: str) -> AgentState:
        """Save that the device has a model no more, before returning.

        Args:
            name: The model.

        Returns:
            The state as saved.

        Raises:
            StorageError: It could not be saved; the state in memory is unchanged.
        """
        with self._lock:
            models = {key: r for key, r in self._state.models.items() if key != name}
            return self._save(msgspec.structs.replace(self._state, models=models))

    def _save(self, changed: AgentState) -> AgentState:
        if changed == self._state:
            return changed
        is_newer = changed.revision != self._state.revision
        if is_newer:
            replaced = self._state.revision
            self._floor_file.write(Floor(revision=changed.revision, replaces=replaced))
            self._floor = changed.revision
        if lasting(changed) != lasting(self._state):
            self._copy.write(changed)
        self._record.write(changed)
        self._state = changed
        if is_newer:
            with contextlib.suppress(StorageError):  # the next start does it
                self._floor_file.write(Floor(revision=changed.revision))
        return changed

    def _read_record(self, file: SealedFile[StoredState]) -> AgentState | None:
        stored = self._read(file)
        if stored is None:
            return None
        if stored.schema_version == ONE_MODEL and stored.target is None:
            self._is_named_now = self._served is not None
        return stored.upgraded(self._served)

    def _read(self, file: SealedFile[K]) -> K | None:
        """Return what a file holds, or None if there is none or it is damaged."""
        with contextlib.suppress(IntegrityError):
            value = file.read()
            if value is None or is_possible(value):
                return value
        self._set_aside(file, "damaged")
        return None

    def _believed(
        self,
        file: SealedFile[StoredState],
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
        is_missing = floor is None or floor.revision != settled.revision
        with contextlib.suppress(StorageError):
            if is_missing and self._state.revision > 0:
                self._floor_file.write(settled)
            if copy is None or lasting(copy) != lasting(self._state) or self._is_named_now:
                self._copy.write(self._state)
            # Without a copy the record may be of an agent that knew no checksums.
            if copy is None or record != self._state or self._is_named_now:
                self._record.write(self._state)
            # It goes on to say what the record may be until that is newer: power may go here, too.
            if not is_missing and floor != settled:
                self._floor_file.write(settled)
