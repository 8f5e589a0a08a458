"""Adjusts a database that was restored from a backup to devices that have gone on meanwhile.

Rules:
- Every revision grows, so that each device takes what the database says as new.
- What the database knows of the present starts of the devices is forgotten: each is asked anew.
- The time limits of what is under way begin again.
- Counters for other systems begin at 0 again.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow
from controller.store.rollout_tables import DeploymentRow
from telemetry.server.tables import export_counter
from wire.desired import MAX_REVISION

RAISE_BY: Final = 2**16
"""More than a device gets between two backups, and far less than a device accepts as one step."""


def catch_up(session: Session, *, now_s: float) -> None:
    """Let a restored database lead its devices again.

    Args:
        session: The transaction.
        now_s: Wall time.
    """
    may_grow = DesiredStateRow.revision <= MAX_REVISION - RAISE_BY
    gave = (
        select(DesiredModelRow.device)
        .join(DesiredStateRow, DesiredStateRow.device == DesiredModelRow.device)
        .where(
            DesiredModelRow.device == DeploymentRow.device,
            DesiredModelRow.model == DeploymentRow.model,
            DesiredModelRow.release_revision == DeploymentRow.revision,
            may_grow,
        )
        .correlate(DeploymentRow)
    )
    changes = (
        update(DeploymentRow)
        .where(gave.exists())
        .values(revision=DeploymentRow.revision + RAISE_BY),
        update(DesiredModelRow)
        .where(DesiredModelRow.device.in_(select(DesiredStateRow.device).where(may_grow)))
        .values(release_revision=DesiredModelRow.release_revision + RAISE_BY),
        update(DesiredStateRow)
        .where(may_grow)
        .values(revision=DesiredStateRow.revision + RAISE_BY, issued_at_s=now_s),
        update(DeploymentRow)
        .where(DeploymentRow.state == DeploymentState.ASSIGNED)
        .values(started_at_s=now_s, reported_at_s=None),
        update(DeviceRow).values(boot_id="", report_sequence=0),
        # Less than Prometheus has seen: it takes counters that begin anew for what they are.
        delete(export_counter),
    )
    for change in changes:
        session.execute(change.execution_options(synchronize_session=False))
