"""The steps that a rollout is made of, each within the caller's transaction.

Rules:
- A step changes the database only; it returns the devices that have a new desired state, and the
  caller publishes those after the transaction.
- A device that goes back gets a new desired state, because a revision never returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sqlalchemy.orm import Session

from controller.domain.rollout_policy import counted
from controller.domain.selectors import parse_selector
from controller.domain.states import DeploymentEvent, DeploymentState, RolloutOrder
from controller.store import deployments, desired, previous, rollouts
from controller.store.deployments import Start
from controller.store.standing import Verdict
from controller.store.tables import RolloutRow

SILENT = Verdict(error_code="controller.deadline", detail="silent past its deadline")
MAX_NEWCOMERS = 1000
"""Devices that join in one tick."""


def position_of(rollout: str, device: str) -> int:
    """Return the place of a device in the order of starting: a shuffle that any process repeats."""
    return int.from_bytes(hashlib.sha256(f"{rollout}/{device}".encode()).digest()[:3])


def take_in(session: Session, row: RolloutRow, devices: Sequence[str]) -> None:
    """Let devices take part in a rollout."""
    deployments.add(session, row.id, [(name, position_of(row.id, name)) for name in devices])


def join_newcomers(session: Session, row: RolloutRow, *, now_s: float) -> None:
    """Let devices that enrolled meanwhile take part in the last stage of a rollout."""
    selector = parse_selector(row.selector)
    found = deployments.newcomers(session, row.id, selector, limit=MAX_NEWCOMERS)
    if found:
        take_in(session, row, found)
        rollouts.log(
            session, row.id, action="join", reason=_named(found, "joined late"), now_s=now_s
        )


def start_devices(
    session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float
) -> list[str]:
    """Give devices the release of a rollout.

    Args:
        session: The transaction.
        row: The rollout.
        devices: Whose deployments are pending.
        now_s: Wall time.

    Returns:
        The devices to be told.

    Raises:
        IllegalTransitionError: A deployment is no longer pending.
    """
    if not devices:
        return []
    had = previous.previous_of(session, devices)
    revisions = desired.issue(
        session, dict.fromkeys(devices, row.release), rollout=row.id, now_s=now_s
    )
    starts = [
        Start(device=name, revision=revisions[name], previous=had.get(name)) for name in devices
    ]
    deployments.record_start(session, row.id, starts, stage=row.stage, now_s=now_s)
    deployments.move(session, row.id, devices, DeploymentEvent.ASSIGN, now_s=now_s)
    rollouts.log(
        session,
        row.id,
        action="start",
        reason=_named(devices, f"for stage {row.stage}"),
        now_s=now_s,
    )
    return list(devices)


def expire_devices(
    session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float
) -> None:
    """Record that devices did not answer in time.

    Args:
        session: The transaction.
        row: The rollout.
        devices: Whose deployments are assigned.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: One of them has answered meanwhile.
    """
    if devices:
        deployments.move(
            session, row.id, devices, DeploymentEvent.FAIL, now_s=now_s, verdict=SILENT
        )
        reason = _named(devices, SILENT.detail)
        rollouts.log(session, row.id, action="expire", reason=reason, now_s=now_s)


def end_rollout(
    session: Session, row: RolloutRow, order: RolloutOrder, *, reason: str, now_s: float
) -> list[str]:
    """End a rollout: nothing of it starts any more.

    Args:
        session: The transaction.
        row: The rollout.
        order: `HALT`, `ABORT` or `FINISH`.
        reason: Why.
        now_s: Wall time.

    Returns:
        The devices to be told that they go back; none when it finished.

    Raises:
        IllegalTransitionError: It has ended already.
    """
    rollouts.move(session, row, order)
    row.finished_at_s = now_s
    row.reason = reason[:500]
    rollouts.log(session, row.id, action=order, reason=reason, now_s=now_s)
    back: list[str] = []
    if order is not RolloutOrder.FINISH:
        back = _send_back(session, row, now_s=now_s)
    left = deployments.unfinished_of(session, row.id)
    verdict = Verdict(error_code=f"controller.{order}", detail=reason[:500])
    deployments.move(session, row.id, left, DeploymentEvent.CANCEL, now_s=now_s, verdict=verdict)
    return back


def skip_device(session: Session, device: str, *, reason: str, now_s: float) -> None:
    """Take a device out of the rollout that it takes part in, if any, and let it go back.

    Args:
        session: The transaction.
        device: The device.
        reason: Why.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: Its deployment finished meanwhile.
    """
    for row in deployments.unfinished(session, [device]):
        verdict = Verdict(error_code="controller.skipped", detail=reason)
        if row.state == DeploymentState.ASSIGNED:
            back = previous.to_restore(session, row.rollout)
            mine = {name: item for name, item in back.items() if name == device}
            desired.issue(session, mine, rollout=row.rollout, now_s=now_s)
        deployments.move(
            session, row.rollout, [device], DeploymentEvent.CANCEL, now_s=now_s, verdict=verdict
        )
        rollouts.log(session, row.rollout, action="skip", reason=f"{device}: {reason}", now_s=now_s)


def _send_back(session: Session, row: RolloutRow, *, now_s: float) -> list[str]:
    back = previous.to_restore(session, row.id)
    if not back:
        return []
    desired.issue(session, back, rollout=row.id, now_s=now_s)
    names = sorted(back)
    rollouts.log(
        session,
        row.id,
        action="restore",
        reason=_named(names, "back to what was there before"),
        now_s=now_s,
    )
    return names


def _named(devices: Sequence[str], what: str) -> str:
    shown = ", ".join(devices[:5]) + (", ..." if len(devices) > 5 else "")  # noqa: PLR2004 - what a line holds
    return f"{counted(len(devices))} {what}: {shown}"
