"""Devices that join a rollout that goes on."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.selectors import parse_selector
from controller.domain.starting_order import TAIL, position
from controller.domain.states import DeploymentState
from controller.store import deployments, free_devices
from controller.store.database import BATCH, in_batches
from controller.store.new_deployments import take_in
from controller.store.rollouts import log, named
from controller.store.tables import DeploymentRow, RolloutRow


def states(session: Session, rollout: str, devices: Sequence[str]) -> dict[str, DeploymentState]:
    """Return the states in which some devices are in a rollout, those that are in it."""
    found: dict[str, DeploymentState] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(DeploymentRow.device, DeploymentRow.state).where(*deployments.of(rollout, batch))
        )
        found |= {device: DeploymentState(state) for device, state in rows}
    return dict(sorted(found.items()))


def joinable(session: Session, rollout: str, model: str, devices: Sequence[str]) -> list[str]:
    """Return those of some devices that are enrolled, and in no unfinished rollout of a model."""
    anyone = parse_selector("")
    return [
        device
        for batch in in_batches(devices)
        for device in free_devices.newcomers(
            session, rollout, model, anyone, limit=BATCH, among=batch
        )
    ]


def join(session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float) -> None:
    """Let devices join the tail of a rollout.

    Args:
        session: The transaction.
        row: The rollout, locked.
        devices: Devices that may join.
        now_s: Wall time.
    """
    placed = {device: TAIL + position(row.id, device) for device in devices}
    take_in(session, row.id, row.model, placed, releases={}, now_s=now_s)
    row.stage_complete_at_s = None
    reason = named(devices, "added by the operator")
    log(session, row.id, action="add", reason=reason, now_s=now_s)
