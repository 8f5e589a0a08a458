"""What the agent keeps of its models over a restart, and what these records tell. Pure.

Rules:
- Records of agents that had one model are read: its model has the name of its target.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.install.states import State
from wire.desired import MAX_REVISION, ModelState
from wire.installs import InstallReport, ReleaseRef
from wire.package.index import is_digest
from wire.profile import NAME_PATTERN

SCHEMA_VERSION = 2
ONE_MODEL: Final = 1
"""The version of records of agents that had one model; they are read."""

FLOOR_VERSION: Final = 1


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an install failed."""

    phase: State
    code: str
    detail: str


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What survives a restart of one model, apart from its packages."""

    revision: int = 0
    """Revision of the model that was accepted last (`wire.desired.ModelState`)."""

    state: State = State.IDLE
    attempts: int = 0
    """How often the effect of `state` was begun without progress."""

    delayed_s: float = 0.0
    """For how long hooks have delayed this install."""

    target: ReleaseRef | None = None
    rollout: str | None = None
    """Rollout of `target`. Another rollout is another install, even of the same package."""

    windows: tuple[str, ...] = ()
    """The hours of the local day in which `target` may be activated; empty for all."""

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

    agreements: dict[str, dict[str, float]] = {}
    """By package digest: the agreement of each variant in its golden test on this device."""

    report: InstallReport | None = None
    """The outcome of the last install, sent again when its desired state comes again."""

    pinned: str | None = None
    """Variant that the operator pinned on this device."""


NO_RECORD: Final = ModelRecord()


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that survives a restart, apart from the packages."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0
    """Revision of the desired state that was accepted last."""

    desired: bytes = b""
    """Its signed envelope."""

    models: dict[str, ModelRecord] = {}
    """The models of the device, by name."""

    @property
    def wanted(self) -> frozenset[str]:
        """The digests of all packages that an install brings, or that a model may return to."""
        records = self.models.values()
        targets = {record.target.digest for record in records if record.target is not None}
        return frozenset(targets | {r.previous for r in records if r.previous is not None})


class StoredState(ModelRecord, frozen=True, kw_only=True):
    """A record as it lies in a file: of this version, or of agents that had one model."""

    schema_version: int
    desired: bytes = b""
    models: dict[str, ModelRecord] = {}

    def upgraded(self, name: str | None) -> AgentState:
        """Return the record of this version.

        Args:
            name: The name of the one model, if its target does not tell it; None if nobody knows.
        """
        models = self.models
        if self.schema_version == ONE_MODEL:
            name = self.target.name if self.target is not None else name
            fields = {key: getattr(self, key) for key in ModelRecord.__struct_fields__}
            models = {} if name is None else {name: ModelRecord(**fields)}
        return AgentState(revision=self.revision, desired=self.desired, models=models)


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept apart from the record."""

    schema_version: int = FLOOR_VERSION
    revision: int
    """Of the desired state that was accepted last."""

    replaces: int | None = None
    """Revision of the record that is being replaced; None as soon as the new one is written."""


def is_possible(value: StoredState | Floor) -> bool:
    """Tell whether a file may hold this: its version is known, and so are its values."""
    if not 0 <= value.revision <= MAX_REVISION:
        return False
    if isinstance(value, Floor):
        return value.schema_version == FLOOR_VERSION
    if value.schema_version not in {ONE_MODEL, SCHEMA_VERSION}:
        return False
    names = all(NAME_PATTERN.fullmatch(name) for name in value.models)
    return names and all(_is_possible_record(r) for r in (value, *value.models.values()))


def _is_possible_record(record: ModelRecord) -> bool:
    target = record.target
    if target is not None and NAME_PATTERN.fullmatch(target.name) is None:
        return False
    digests = (record.previous, *((target.digest, target.envelope_sha256) if target else ()))
    return all(digest is None or is_digest(digest) for digest in digests)


def newest(records: Iterable[AgentState | None]) -> AgentState:
    """Return the newer record; of the same revision the first; without any that of a new device."""
    found = [each for each in records if each is not None]
    return max(found, key=lambda each: each.revision, default=AgentState())


def remnant(record: AgentState) -> AgentState:
    """Return what a record that may be too old still tells: nothing that an install begins with."""
    return AgentState(
        desired=record.desired,  # its policies hold until the controller answers
        models={
            name: ModelRecord(
                previous=model.previous,
                dropped=model.dropped,
                latencies_ms=model.latencies_ms,
                agreements=model.agreements,
                pinned=model.pinned,
            )
            for name, model in record.models.items()
        },
    )


def has_served(record: ModelRecord) -> bool:
    """Tell whether the present target has served on this device, whatever became of it since."""
    report, target = record.report, record.target
    if report is None or target is None or report.digest != target.digest:
        return False
    return record.repairing or report.outcome == "succeeded"


def has_failed(record: ModelRecord, digest: str) -> bool:
    """Tell whether a package is one whose install has failed, so that the version before serves."""
    target = record.target
    is_it = target is not None and target.digest == digest
    return is_it and record.failure is not None and not record.repairing


def runs_now(record: ModelRecord, digest: str) -> bool:
    """Tell whether a package is installed and nothing is to be done about it."""
    target = record.target
    is_it = target is not None and target.digest == digest
    return is_it and record.state is State.IDLE and has_served(record) and not record.repairing


def outcome_of(record: ModelRecord, desired: ModelState) -> InstallReport | None:
    """Return the outcome of what is desired; None if it was never accepted or has none yet."""
    report = record.report
    if report is None or report.revision != record.revision:
        return None
    # Without a rollout two installs of the same package cannot be told apart.
    same_install = desired.rollout is not None and (desired.release, desired.rollout) == (
        record.target,
        record.rollout,
    )
    return report if same_install or desired.revision == record.revision else None


def lasting(state: AgentState) -> AgentState:
    """Return a state without the progress of its installs, which can be made again."""
    return msgspec.structs.replace(
        state,
        models={
            name: msgspec.structs.replace(record, state=State.IDLE, attempts=0, delayed_s=0.0)
            for name, record in state.models.items()
        },
    )
