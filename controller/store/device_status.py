"""What is known of a device that sends a message: all of it in one query."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
)
from controller.store import devices
from controller.store.database import in_batches
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.tables import (
    DeploymentRow,
    DeviceRow,
    RolloutRow,
)

SEEN_EVERY_S = 30.0
"""How exact `last_seen_at_s` is: not every message of a device must cause a write."""

TURNS = 0x65666C_08
"""Advisory locks of PostgreSQL with two numbers: this one, and one for each device."""

# Built once: building a statement takes longer than SQLite takes to answer it.
_STATUS: Select[*tuple[Any, ...]] = (
    select(DeviceRow, DesiredStateRow, DesiredModelRow, DeploymentRow, DeviceModelRow)
    .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .outerjoin(DesiredModelRow, DesiredModelRow.device == DeviceRow.id)
    .outerjoin(DeviceModelRow, devices.told_of_model())
    .outerjoin(
        DeploymentRow,
        and_(
            DeploymentRow.device == DesiredModelRow.device,
            DeploymentRow.model == DesiredModelRow.model,
            DeploymentRow.revision == DesiredModelRow.release_revision,
            or_(
                DeploymentRow.state == DeploymentState.WAITING,
                DeploymentRow.rollout.in_(
                    select(RolloutRow.id).where(RolloutRow.state.in_(ACTIVE_ROLLOUTS))
                ),
            ),
        ),
    )
    .where(DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED)
)
_SEEN = select(DeviceRow.id, DeviceRow.online, DeviceRow.last_seen_at_s).where(
    DeviceRow.id.in_(bindparam("devices", expanding=True)),
    DeviceRow.state == DeviceState.ENROLLED,
)


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
    """An enrolled device, its desired state, and its models."""

    device: DeviceRow
    desired: DesiredStateRow | None
    models: Mapping[str, ModelStatus]

    @property
    def named(self) -> list[ModelStatus]:
        """The models that the desired state names."""
        return [known for known in self.models.values() if not known.desired.removed]

    @property
    def wanted(self) -> dict[str, str | None]:
        """The models that the desired state names, each with the digest of its release."""
        return {item.desired.model: item.desired.release for item in self.named}


def take_turn(session: Session, device: str) -> None:
    """Let messages of a device wait for each other until the transaction ends.

    Several controllers may take them at one time. It is no lock of a row, so that it is taken
    before all others and nobody waits in a circle. A transaction of SQLite that writes is alone.
    """
    if session.get_bind().dialect.name == "postgresql":
        turn = func.pg_advisory_xact_lock(TURNS, func.hashtext(device))
        session.execute(select(turn))


def find(session: Session, device: str) -> DeviceStatus | None:
    """Return what is known of a device, or None when it is not enrolled."""
    rows = session.execute(_STATUS, {"device": device}).all()
    if not rows:
        return None
    models = {
        wanted.model: ModelStatus(desired=wanted, deployment=part, told=told)
        for _row, _state, wanted, part, told in rows
        if wanted is not None
    }
    return DeviceStatus(device=rows[0][0], desired=rows[0][1], models=models)


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
