"""Devices that join a rollout that goes on, and devices that leave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from controller.domain.deployment_codes import EXCLUDED
from controller.domain.gates.control import LEAST_OF_ROLLOUT, comparable
from controller.domain.gates.control import control_group as control_group_of
from controller.domain.selectors import parse_selector
from controller.domain.starting_order import positions, tail_after
from controller.domain.states import WorkKind
from controller.store import (
    control_group,
    deployments,
    free_devices,
    gate_turns,
    models,
    rollout_work,
    stages,
    taking_out,
)
from controller.store.database import BATCH, MANY, in_batches
from controller.store.deployment_changes import Verdict
from controller.store.device_facts import profile_names
from controller.store.new_deployments import Intake, intake, take_in_first
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import DeploymentRow, RolloutRow


class Members(NamedTuple):
    """Those of some devices that are in a rollout."""

    states: dict[str, str]
    """Each with its state, by name."""

    excluded: set[str]
    """Those that the operator has taken out."""


def among(session: Session, rollout: str, devices: Sequence[str]) -> Members:
    """Return those of some devices that are in a rollout."""
    columns = select(DeploymentRow.device, DeploymentRow.state, DeploymentRow.error_code)
    session.flush()
    connection = session.connection()  # no objects are read, and a session takes twice as long
    rows: list[Row[str, str, str]] = []
    if len(devices) > MANY:
        wanted = frozenset(devices)
        every = connection.execute(columns.where(DeploymentRow.rollout == rollout)).all()
        rows += [row for row in every if row[0] in wanted]
    else:
        for batch in in_batches(devices):
            rows += connection.execute(columns.where(*deployments.of(rollout, batch))).all()
    return Members(
        states={device: state for device, state, _ in sorted(rows)},
        excluded={device for device, _, code in rows if code == EXCLUDED},
    )


def joinable(session: Session, rollout: str, model: str, devices: Sequence[str]) -> list[str]:
    """Return those of some devices that are enrolled and that no rollout of a model keeps."""
    anyone = parse_selector("")
    if len(devices) > MANY:
        free = frozenset(free_devices.newcomers(session, rollout, model, anyone, limit=None))
        return [device for device in devices if device in free]
    return [
        device
        for batch in in_batches(devices)
        for device in free_devices.newcomers(
            session, rollout, model, anyone, limit=BATCH, among=batch
        )
    ]


class Joining(NamedTuple):
    """Devices that may join a rollout."""

    intake: Intake
    control: frozenset[str] = frozenset()
    """Those that keep the old release until the gates have passed."""

    incomparable: int = 0
    """How many no gate of the rollout compares."""

    is_after_gates: bool = False
    """Whether its gates have passed, and are asked no more."""


def at_tail(session: Session, row: RolloutRow, devices: Sequence[str]) -> Joining:
    """Return how devices join a rollout, with a control group of their own if it has one.

    Args:
        session: The transaction.
        row: The rollout.
        devices: The devices.
    """
    is_compared = control_group.is_planned(session, row.id)
    tail = tail_after(_greatest_place(session, row.id) if is_compared else None)
    placed = {device: tail + at for device, at in positions(row.id, devices).items()}
    if not is_compared:
        return Joining(intake(placed))
    if row.control_released:
        return Joining(intake(placed), is_after_gates=True)
    profiles, served = profile_names(session, devices), models.served(session, row.model, devices)
    serving = {
        device: placed[device]
        for device, release in served.items()
        if release not in {None, row.release}
    }
    control = frozenset[str]()
    if len(serving) >= LEAST_OF_ROLLOUT:  # they are no sample, as those that a stage chooses
        control = control_group_of(serving, profiles, row.control_percent)
    target = len(serving) - len(control)
    ((new, old),) = comparable([target], serving, profiles, control)
    if not min(new, old):
        return Joining(intake(placed), incomparable=len(devices))
    return Joining(intake(placed, control=control), control, len(devices) - new - old)


def _greatest_place(session: Session, rollout: str) -> int | None:
    statement = select(func.max(DeploymentRow.position)).where(DeploymentRow.rollout == rollout)
    return session.scalar(statement)


def join(session: Session, row: RolloutRow, found: Joining, *, now_s: float) -> list[str]:
    """Let devices join the tail of a rollout, as many as now can, and save the rest.

    Args:
        session: The transaction.
        row: The rollout, locked.
        found: Devices that may join, by `at_tail`.
        now_s: Wall time.

    Returns:
        Those that do not join: they are gone, or in a rollout, since it was decided.
    """
    lost = take_in_first(session, row.id, row.model, found.intake, now_s=now_s)
    if row.stage == len(stages.of_rollout(session, row.id)):  # they start in the last one
        row.stage_complete_at_s = None
        gate_turns.begin_anew(session, row)
    reason = named(list(found.intake.placed), "added by the operator")
    if found.control:
        reason += f"; {len(found.control)} of them keep the old release until the gates have passed"
    log(session, row.id, action="add", reason=reason, now_s=now_s)
    return lost


def leave(session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float) -> None:
    """Take devices that have not begun out of a rollout, as many as now can be, and save the rest.

    Args:
        session: The transaction.
        row: The rollout, locked.
        devices: Its devices.
        now_s: Wall time.
    """
    reason = "taken out by the operator"
    verdict = Verdict(error_code=EXCLUDED, detail=reason)
    first, rest = devices[: rollout_work.AT_ONCE], devices[rollout_work.AT_ONCE :]
    taking_out.let_go(session, row, first, verdict, now_s=now_s)
    rollout_work.save(session, row.id, WorkKind.LET_GO, dict.fromkeys(rest), verdict)
    log(session, row.id, action="exclude", reason=named(devices, reason), now_s=now_s)
