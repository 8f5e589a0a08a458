"""Devices that run another release than they should, rollouts that go on included."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, select
from sqlalchemy.orm import Session, aliased

from controller.domain.selectors import Selector
from controller.domain.states import DeviceState
from controller.store import devices
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.selector_conditions import conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """A device and a model of which it should run another release."""

    device: DeviceRow
    desired: DesiredModelRow
    state: DesiredStateRow
    told: DeviceModelRow | None
    """What the device says."""

    part: DeploymentRow | None
    """Its part in the rollout that gave it the release, if one did."""

    running: ReleaseRow | None
    wanted: ReleaseRow | None


def rows(
    session: Session, selector: Selector, *, after: tuple[str, str], limit: int
) -> list[Differing]:
    """Return enrolled devices and models of which they should run another release.

    Args:
        session: The transaction.
        selector: Which devices.
        after: Begin after this device and model.
        limit: The greatest number.
    """
    running, wanted = aliased(ReleaseRow), aliased(ReleaseRow)
    part = and_(
        DeploymentRow.device == DesiredModelRow.device,
        DeploymentRow.model == DesiredModelRow.model,
        DeploymentRow.revision == DesiredModelRow.release_revision,
    )
    device, model = after
    is_next = (DeviceRow.id > device) | ((DeviceRow.id == device) & (DesiredModelRow.model > model))
    statement = (
        select(
            DeviceRow,
            DesiredModelRow,
            DesiredStateRow,
            DeviceModelRow,
            DeploymentRow,
            running,
            wanted,
        )
        .join(DesiredModelRow, devices.named_model())
        .join(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .outerjoin(DeviceModelRow, devices.told_of_model())
        .outerjoin(DeploymentRow, part)
        .outerjoin(running, running.digest == DeviceModelRow.release)
        .outerjoin(wanted, wanted.digest == DesiredModelRow.release)
        .where(
            DeviceRow.state == DeviceState.ENROLLED,
            DesiredModelRow.release.is_not(None),
            DeviceModelRow.release.is_distinct_from(DesiredModelRow.release),
            is_next,
            *conditions(session, selector),
        )
        .order_by(DeviceRow.id, DesiredModelRow.model)
        .limit(limit)
    )
    return [
        Differing(
            device=row,
            desired=desired,
            state=state,
            told=told,
            part=mine,
            running=runs,
            wanted=should,
        )
        for row, desired, state, told, mine, runs, should in session.execute(statement)
    ]
