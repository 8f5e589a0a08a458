"""Shadows for which stages of rollouts wait: what each stage needs, and what looks have shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, exists, false, func, select
from sqlalchemy.orm import Session

from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.rollout_view import StageSpec
from controller.domain.shadow_agreement import Agreement
from controller.domain.stage_shadow import ShadowNeed, ShadowView
from controller.domain.states import ACTIVE_ROLLOUTS, DeploymentState
from controller.errors import SelectorError
from controller.store import shadows
from controller.store.device_tables import DeviceRow
from controller.store.groups import read_selector
from controller.store.model_tables import DeviceModelRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow, RolloutStageRow
from controller.store.selector_conditions import conditions
from controller.store.shadow_tables import ShadowRow
from controller.store.stage_shadow_tables import StageShadowRow
from controller.store.tables import MAX_DETAIL_CHARS


class Waiting(NamedTuple):
    """What the current stage of a rollout waits for."""

    need: ShadowNeed
    so_far: StageShadowRow | None
    """How far it is; None if it has just come to that stage."""

    able: int
    """How many devices can run the shadow, counted up to as many as must tell."""

    chosen: str
    """Which devices run it, as a selector."""


def need_of(session: Session, row: RolloutRow) -> ShadowNeed | None:
    """Return what the current stage of a rollout needs of a shadow; None for nothing."""
    spec = session.get(RolloutStageRow, (row.id, row.stage))
    return ShadowNeed(**spec.shadow) if spec is not None and spec.shadow else None


def view(session: Session, row: RolloutRow) -> ShadowView | None:
    """Return the shadow for which the current stage of a rollout waits; None if it needs none."""
    if need_of(session, row) is None:
        return None
    return _view(session.get(StageShadowRow, (row.id, row.stage)))


def views(session: Session, rollout: str, specs: Sequence[StageSpec]) -> dict[int, ShadowView]:
    """Return the shadows of all stages of a rollout that need one, by the stage.

    Args:
        session: The transaction.
        rollout: The rollout.
        specs: Its stages.
    """
    if not any(spec.shadow for spec in specs):
        return {}
    found = {
        row.stage: row
        for row in session.scalars(select(StageShadowRow).where(StageShadowRow.rollout == rollout))
    }
    return {
        number: _view(found.get(number))
        for number, spec in enumerate(specs, start=1)
        if spec.shadow is not None
    }


def _view(row: StageShadowRow | None) -> ShadowView:
    if row is None:
        return ShadowView()
    return ShadowView(state=GateState(row.state), reason=row.reason, is_waived=row.is_waived)


def waiting(session: Session, row: RolloutRow, *, now_s: float) -> Waiting | None:
    """Return for what the current stage of a rollout waits; None if it does not.

    Args:
        session: The transaction.
        row: The rollout.
        now_s: Wall time.
    """
    need, found = need_of(session, row), view(session, row)
    if row.state not in ACTIVE_ROLLOUTS or need is None or found is None or not found.holds:
        return None
    is_left = select(DeploymentRow.device).where(*_left(row.id)).limit(1)
    if session.scalar(is_left) is None:
        return None
    so_far = session.get(StageShadowRow, (row.id, row.stage))
    shadow = shadows.find(session, row.model)
    is_by_hand = shadow is not None and shadow.rollout is None and shadow.release == row.release
    chosen = shadow.selector if shadow is not None and is_by_hand else row.selector
    able = _able(session, row, chosen, now_s=now_s)
    return Waiting(need=need, so_far=so_far, able=able, chosen=chosen)


def _left(rollout: str) -> list[ColumnElement[bool]]:
    """Return what holds for the devices of a rollout that have not started."""
    return [DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.PENDING]


def _runs_it(session: Session, chosen: str, *, now_s: float) -> list[ColumnElement[bool]]:
    """Return what holds for the devices that are told of a shadow and allow it."""
    try:
        selector = read_selector(session, chosen, now_s=now_s)
    except SelectorError:  # a group of it is gone: it chooses nobody
        return [false()]
    return [DeviceRow.allows_shadows.is_(True), *conditions(session, selector)]


def _able(session: Session, row: RolloutRow, chosen: str, *, now_s: float) -> int:
    """Count the devices left that can run the shadow beside another release, up to a few."""
    serves = exists().where(
        DeviceModelRow.device == DeploymentRow.device,
        DeviceModelRow.model == row.model,
        DeviceModelRow.release != row.release,
    )
    able = (
        select(DeploymentRow.device)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(*_left(row.id), *_runs_it(session, chosen, now_s=now_s), serves)
        .limit(LEAST_DEVICES)
    )
    return session.scalar(select(func.count()).select_from(able.subquery())) or 0


def begin(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Note that the current stage of a rollout waits for its shadow from now on.

    Looks of before, as after a halt for another reason, have taken their part of what may err.
    """
    before = session.get(StageShadowRow, (row.id, row.stage))
    session.merge(
        StageShadowRow(
            rollout=row.id,
            stage=row.stage,
            began_at_s=now_s,
            began_clock_s=row.ran_s,
            looked_clock_s=None,
            looks=before.looks if before is not None else 0,
            state=GateState.HOLD,
            reason="it has begun, and is looked at after a minute",
            is_waived=False,
        )
    )
    session.flush()


def save(session: Session, row: RolloutRow, found: Agreement) -> None:
    """Save what a look at the shadow of the current stage has shown.

    Args:
        session: The transaction.
        row: The rollout, locked.
        found: What it has shown.
    """
    so_far = session.get_one(StageShadowRow, (row.id, row.stage))
    so_far.state, so_far.reason = found.state, found.reason[:MAX_DETAIL_CHARS]
    so_far.looked_clock_s = row.ran_s
    so_far.looks += found.is_judged


def waive(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let the current stage of a rollout begin without its shadow.

    Args:
        session: The transaction.
        row: The rollout, locked.
        now_s: Wall time.
    """
    if session.get(StageShadowRow, (row.id, row.stage)) is None:
        begin(session, row, now_s=now_s)
    session.get_one(StageShadowRow, (row.id, row.stage)).is_waived = True


def waive_failed(session: Session, row: RolloutRow, *, now_s: float) -> bool:
    """Let the current stage begin if its shadow failed; tell whether it did."""
    found = view(session, row)
    if found is None or not found.fails:
        return False
    waive(session, row, now_s=now_s)
    return True


def members(session: Session, rollout: str, chosen: str, *, now_s: float) -> dict[str, bool]:
    """Return the devices of a rollout, and whether each could tell of a shadow.

    Those that were started have the release itself; those that take no part do not count.

    Args:
        session: The transaction.
        rollout: The rollout.
        chosen: Which devices run the shadow, as a selector.
        now_s: Wall time.
    """
    rows = session.execute(
        select(DeploymentRow.device, and_(*_runs_it(session, chosen, now_s=now_s)))
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(*_left(rollout))
    )
    return {device: bool(tells) for device, tells in rows}


def left_behind(session: Session, *, now_s: float) -> list[ShadowRow]:
    """Return the shadows of rollouts that do not wait for them, or that too few devices can run."""
    rows = session.execute(
        select(ShadowRow, RolloutRow).join(RolloutRow, RolloutRow.id == ShadowRow.rollout)
    )
    return [
        shadow
        for shadow, rollout in rows
        if (waits := waiting(session, rollout, now_s=now_s)) is None or waits.able < LEAST_DEVICES
    ]
