"""Which devices have to be told again what they should run."""

from __future__ import annotations

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import Session

from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
    ReleaseState,
)
from controller.store import devices as device_rows
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow

REPORT_LOST_AFTER_S = 10.0
"""If a device installs and sends no report for this long, it gets its desired state again, because
its last report may be lost, as when the controller was down. The device repeats the report."""


def of_all(session: Session, *, now_s: float) -> dict[str, bool]:
    """Return online devices that have not accepted, not answered or lost their desired state.

    A device whose install failed is left out: it has answered, and would answer the same.

    Args:
        session: The transaction.
        now_s: Wall time.

    Returns:
        For each whether nothing is recorded but that it has not answered for some time. Reports of
        a transfer that goes on are not recorded.
    """
    part = and_(
        DeploymentRow.device == DesiredModelRow.device,
        DeploymentRow.model == DesiredModelRow.model,
        DeploymentRow.revision == DesiredModelRow.release_revision,
    )
    unanswered = and_(
        func.coalesce(DeploymentRow.reported_at_s, DeploymentRow.started_at_s)
        < now_s - REPORT_LOST_AFTER_S,
        DeploymentRow.state.in_(ORDERED_DEPLOYMENTS),
    )
    is_published = exists().where(
        ReleaseRow.digest == DesiredModelRow.release, ReleaseRow.state == ReleaseState.PUBLISHED
    )
    lost = and_(
        device_rows.differs(),
        is_published,
        DeploymentRow.state.is_distinct_from(DeploymentState.FAILED),
    )
    behind = or_(DeviceRow.reported_revision < DesiredStateRow.revision, lost)
    rows = session.execute(
        select(DeviceRow.id, func.coalesce(behind, False))
        .join(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .outerjoin(DesiredModelRow, device_rows.named_model())
        .outerjoin(DeviceModelRow, device_rows.told_of_model())
        .outerjoin(DeploymentRow, part)
        .where(
            DeviceRow.online.is_(True),
            DeviceRow.state == DeviceState.ENROLLED,
            or_(behind, unanswered),
        )
        .order_by(DeviceRow.id)
    )
    found: dict[str, bool] = {}
    for device, is_behind in rows:
        found[device] = found.get(device, True) and not is_behind
    return found
