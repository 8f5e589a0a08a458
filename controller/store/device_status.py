"""What is known of devices that send messages: all of it in two queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from sqlalchemy import BindParameter, Select, and_, bindparam, func, or_, select, text, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
)
from controller.store import devices as device_rows
from controller.store.database import in_batches
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.row_changes import R, RowChanges

SEEN_EVERY_S = 30.0
"""How exact `last_seen_at_s` is: not every message of a device must cause a write."""

TURNS = 0x65666C_08
"""Advisory locks of PostgreSQL with two numbers: this one, and one for each device."""

_TURNS = text(
    "SELECT pg_advisory_xact_lock(:turns, turn) FROM (SELECT DISTINCT hashtext(device) AS turn"
    " FROM unnest(CAST(:devices AS text[])) AS device ORDER BY turn) AS turns"
)
_WAIT_BRIEFLY = text("SET LOCAL lock_timeout = '200ms'")
"""PostgreSQL looks for those who wait in a circle after a second, and ends one of them."""

# Built once: building a statement takes longer than SQLite takes to answer it.
_DEVICE = (
    *(DeviceRow.id, DeviceRow.profile_name, DeviceRow.architecture, DeviceRow.profile),
    *(DeviceRow.runtimes, DeviceRow.agent_version, DeviceRow.boot_id, DeviceRow.online),
    *(DeviceRow.greeted, DeviceRow.peer_url, DeviceRow.trust_file, DeviceRow.report_sequence),
    *(DeviceRow.desired_form, DeviceRow.reported_revision, DeviceRow.last_error),
    *(DeviceRow.last_seen_at_s, DeviceRow.expected_from_s, DeviceRow.allows_shadows),
)
_STATE = (DesiredStateRow.device, DesiredStateRow.revision)
_MODEL = (
    *(DesiredModelRow.device, DesiredModelRow.model, DesiredModelRow.release),
    *(DesiredModelRow.release_revision, DesiredModelRow.removed, DesiredModelRow.windows),
)
_PART = (
    *(DeploymentRow.rollout, DeploymentRow.device, DeploymentRow.state, DeploymentRow.revision),
    *(DeploymentRow.phase, DeploymentRow.detail, DeploymentRow.done_bytes),
    *(DeploymentRow.total_bytes, DeploymentRow.reported_at_s),
)
_TOLD = (
    *(DeviceModelRow.device, DeviceModelRow.model, DeviceModelRow.revision),
    *(DeviceModelRow.release, DeviceModelRow.variant, DeviceModelRow.phase),
    DeviceModelRow.last_error,
)
_ONE_OF: BindParameter[Any] = bindparam("devices", expanding=True)
_ENROLLED = and_(DeviceRow.id.in_(_ONE_OF), DeviceRow.state == DeviceState.ENROLLED)
_STATUS: Select[*tuple[Any, ...]] = (
    select(*_DEVICE, *_STATE, *_MODEL, *_PART)
    .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .outerjoin(DesiredModelRow, DesiredModelRow.device == DeviceRow.id)
    .outerjoin(
        DeploymentRow,
        and_(
            DeploymentRow.device == DesiredModelRow.device,
            DeploymentRow.model == DesiredModelRow.model,
            DeploymentRow.revision == DesiredModelRow.release_revision,
            or_(
                DeploymentRow.state == DeploymentState.WAITING,
                DeploymentRow.rollout.in_(
                    select(RolloutRow.id).where(
                        or_(*(RolloutRow.state == state for state in ACTIVE_ROLLOUTS))
                    )
                ),
            ),
        ),
    )
    .where(_ENROLLED)
)
_ALL_TOLD: Select[*tuple[Any, ...]] = select(*_TOLD).where(DeviceModelRow.device.in_(_ONE_OF))
_SEEN = select(DeviceRow.id, DeviceRow.online, DeviceRow.last_seen_at_s).where(_ENROLLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A model that an enrolled device should run, or no longer, and its deployment for it.

    The deployment is one of a rollout that has not ended, or one that waited when it ended.
    """

    desired: DesiredModelRow
    deployment: DeploymentRow | None
    told: DeviceModelRow | None
    """What the device reported last."""

    @property
    def at_work(self) -> DeploymentRow | None:
        """The deployment, if its outcome is not known."""
        part = self.deployment
        return part if part is not None and part.state in ORDERED_DEPLOYMENTS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """An enrolled device, its desired state, and its models: rows that no session knows."""

    device: DeviceRow
    desired: DesiredStateRow | None
    models: dict[str, ModelStatus]
    told: dict[str, DeviceModelRow]
    """What the device reported last of each model, also of those that it should not have."""

    changes: RowChanges
    """Writes what is changed of these rows."""

    @property
    def named(self) -> list[ModelStatus]:
        """The models that the desired state names."""
        return [known for known in self.models.values() if not known.desired.removed]

    @property
    def wanted(self) -> dict[str, str | None]:
        """The models that the desired state names, each with the digest of its release."""
        return {item.desired.model: item.desired.release for item in self.named}


def take_turns(session: Session, devices: Sequence[str]) -> None:
    """Let messages of devices wait for each other until the transaction ends.

    Several controllers may take them at one time. These are no locks of rows, so that they are
    taken before all others, in one order, and nobody waits in a circle. With several devices the
    transaction fails if it then waits for the lock of a row for long: whoever holds that may wait
    for another one of them. A transaction of SQLite that writes is alone.
    """
    if session.get_bind().dialect.name == "postgresql":
        connection = session.connection()
        if len(devices) > 1:
            connection.execute(_WAIT_BRIEFLY)
        connection.execute(_TURNS, {"turns": TURNS, "devices": list(devices)})


def find(session: Session, device: str) -> DeviceStatus | None:
    """Return what is known of a device, or None when it is not enrolled."""
    return find_all(session, [device], RowChanges()).get(device)


def find_all(
    session: Session, devices: Sequence[str], changes: RowChanges
) -> dict[str, DeviceStatus]:
    """Return what is known of some devices, of those that are enrolled.

    Args:
        session: The transaction.
        devices: Which devices; at most as many as one statement may name.
        changes: Takes what is changed of their rows.

    Returns:
        Device to what is known of it.
    """
    connection, some = session.connection(), {"devices": devices}
    told: defaultdict[str, dict[str, DeviceModelRow]] = defaultdict(dict)
    for values in connection.execute(_ALL_TOLD, some):
        row = _read(changes, DeviceModelRow, _TOLD, values)
        told[row.device][row.model] = row
    found: dict[str, DeviceStatus] = {}
    ends = [*accumulate(map(len, (_DEVICE, _STATE, _MODEL, _PART)))]
    for values in connection.execute(_STATUS, some):
        name, state, model, part = values[0], *(values[at] for at in ends[:-1])
        known = found.get(name)
        if known is None:
            wanted = None
            if state is not None:
                wanted = DesiredStateRow(device=state, revision=values[ends[0] + 1])
            device = _read(changes, DeviceRow, _DEVICE, values)
            known = found[name] = DeviceStatus(
                device=device, desired=wanted, models={}, told=told[name], changes=changes
            )
        if model is None:
            continue
        row_of_model = _read(changes, DesiredModelRow, _MODEL, values[ends[1] :])
        deployment = None
        if part is not None:
            deployment = _read(changes, DeploymentRow, _PART, values[ends[2] :])
        known.models[row_of_model.model] = ModelStatus(
            desired=row_of_model, deployment=deployment, told=told[name].get(row_of_model.model)
        )
    return found


def _read(
    changes: RowChanges,
    kind: type[R],
    columns: Sequence[InstrumentedAttribute[Any]],
    values: Sequence[Any],
) -> R:
    return changes.read(
        kind, {column.key: value for column, value in zip(columns, values, strict=False)}
    )


def note_seen(row: DeviceRow, *, now_s: float) -> None:
    """Record that a device said something."""
    if _is_stale(row.online, row.last_seen_at_s, now_s):
        set_seen(row, now_s=now_s)


def set_seen(row: DeviceRow, *, now_s: float, online: bool = True) -> None:
    """Record that something was heard of a device, and whether it is online then."""
    row.online = online
    row.last_seen_at_s, row.expected_from_s = now_s, None


def noted(session: Session, names: Collection[str], *, now_s: float) -> dict[str, bool]:
    """Tell of which devices a recent message is already recorded.

    Args:
        session: A transaction.
        names: Any devices.
        now_s: Wall time.

    Returns:
        The answer for those that are enrolled.
    """
    found: dict[str, bool] = {}
    for some in in_batches(sorted(names)):
        for name, online, last_seen_at_s in session.execute(_SEEN, {"devices": some}):
            found[name] = not _is_stale(online, last_seen_at_s, now_s)
    return found


def count_enrolled(session: Session) -> int:
    """Return how many devices are enrolled."""
    query = select(func.count()).where(DeviceRow.state == DeviceState.ENROLLED)
    return session.execute(query).scalar_one()


def note_all_seen(session: Session, names: Collection[str], *, now_s: float) -> None:
    """Record that devices said something.

    Args:
        session: A transaction.
        names: Enrolled devices.
        now_s: Wall time.
    """
    for some in in_batches(sorted(names)):
        device_rows.lock_all(session, some)
        session.execute(
            update(DeviceRow)
            .where(DeviceRow.id.in_(some))
            .values(online=True, last_seen_at_s=now_s, expected_from_s=None)
            .execution_options(synchronize_session=False)
        )


def _is_stale(online: bool, last_seen_at_s: float | None, now_s: float) -> bool:
    if not online or last_seen_at_s is None:
        return True
    # Later than now: the clock was set back.
    return not now_s - SEEN_EVERY_S <= last_seen_at_s <= now_s
