"""What has become of the devices of a rollout, put together by reason."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState
from controller.errors import UnknownDeviceError
from controller.store.deployments import target
from controller.store.device_tables import DeviceRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow

MAX_GROUPS: Final = 50
MAX_NAMES: Final = 3
EXPLAINED: Final = (DeploymentState.FAILED, DeploymentState.CANCELLED)


def groups(session: Session, rollout: str) -> list[dict[str, Any]]:
    """Return the devices of a rollout without success, put together by state and code.

    Args:
        session: The transaction.
        rollout: The rollout.

    Returns:
        `state`, `error_code`, `count`, and of the first devices by name `devices` and the `detail`
        of the first; the largest groups first.
    """
    part = DeploymentRow
    found = session.execute(
        select(part.state, part.error_code, func.count())
        .where(part.rollout == rollout, part.state.in_(EXPLAINED))
        .group_by(part.state, part.error_code)
        .order_by(func.count().desc(), part.state, part.error_code)
        .limit(MAX_GROUPS)
    ).all()
    told = []
    for state, code, count in found:
        some = session.execute(
            select(part.device, part.detail)
            .where(part.rollout == rollout, part.state == state, part.error_code == code)
            .order_by(part.device)
            .limit(MAX_NAMES)
        ).all()
        told.append(
            {
                "state": state,
                "error_code": code,
                "count": count,
                "detail": some[0].detail,
                "devices": [each.device for each in some],
            }
        )
    return told


def part(session: Session, rollout: str, device: str) -> tuple[DeploymentRow, bool, ReleaseRow]:
    """Return one device's part in a rollout.

    Args:
        session: The transaction.
        rollout: The rollout.
        device: The device.

    Returns:
        It, whether the device is online, and the release that it is brought to.

    Raises:
        UnknownDeviceError: It has no part in it.
    """
    row = session.execute(
        select(DeploymentRow, DeviceRow.online, ReleaseRow)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(ReleaseRow, ReleaseRow.digest == target())
        .where(DeploymentRow.rollout == rollout, DeploymentRow.device == device)
    ).one_or_none()
    if row is None:
        raise UnknownDeviceError(
            f"device {device[:64]!r} has no part in rollout {rollout}",
            remedy=f"`fleet rollout show {rollout}` lists its devices",
        )
    return row[0], bool(row[1]), row[2]


def count_ahead(session: Session, part: DeploymentRow) -> int:
    """Return how many devices of its rollout start before one that waits for its turn."""
    if part.state != DeploymentState.PENDING:
        return 0
    statement = select(func.count()).where(
        DeploymentRow.rollout == part.rollout,
        DeploymentRow.state == DeploymentState.PENDING,
        DeploymentRow.is_control == part.is_control,
        tuple_(DeploymentRow.position, DeploymentRow.device) < tuple_(part.position, part.device),
    )
    return session.scalar(statement) or 0
