"""The steps that a rollout is made of.

Rules:
- A step returns the devices that have a new desired state. The caller publishes them after the
  transaction.
- A device that goes back gets a new desired state, because a revision never goes down.
- Nobody goes back to what a rollback takes away: when one is halted or aborted, devices that have
  their order keep it, and those that failed keep what they have.
- A decision, its effects and its reason are saved in one transaction. Where they concern very many
  devices, what is left of the effects is saved with it (`controller.store.rollout_work`).
- A rollout that finishes without devices that are offline gives them its release all the same: they
  are told when they return, unless the release is revoked, the rollout is rolled back or another
  rollout takes them in before.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from controller.domain.deployment_codes import LOST, SILENT
from controller.domain.rollout_policy import Decision
from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
    RolloutOrder,
    WorkKind,
)
from controller.store import deployment_changes as changes
from controller.store import (
    deployments,
    desired,
    start_rates,
    taking_out,
    way_back,
)
from controller.store.deployment_changes import Moment, Verdict
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import RolloutRow
from controller.store.rollouts import move
from controller.store.tables import MAX_DETAIL_CHARS
from wire.windows import longest_wait_s, parse_window

MAX_LEFT = 100
"""The greatest number of devices that one tick leaves the release to. A rollout that lacks more of
them ends some ticks later; one of them that returns before that is in flight then."""

_RECALLED = "controller.recalled"
_SILENT = Verdict(error_code=SILENT, detail="sent no report before its deadline")
_LOST = Verdict(
    error_code=LOST,
    detail="went offline when the release may have run on it, and did not come back in time",
)


def look(session: Session, row: RolloutRow, *, elapsed_s: float) -> None:
    """Let the clock of a rollout go on, and note which of its devices are online, and which wait.

    Args:
        session: The transaction.
        row: The rollout, locked.
        elapsed_s: How long the controller has watched it since the last time.
    """
    row.ran_s += elapsed_s
    changes.note_presence(session, row.id, clock_s=row.ran_s)
    parsed = [parse_window(text) for text in row.windows or ()]
    wait_s = longest_wait_s(window for window in parsed if window is not None)
    changes.note_holds(
        session,
        row.id,
        elapsed_s=elapsed_s,
        offline_limit_s=row.offline_limit_s + wait_s,
    )


def save_decision(
    session: Session, row: RolloutRow, decision: Decision, *, now_s: float
) -> list[str]:
    """Save a decision, its reason and its effects.

    Args:
        session: The transaction.
        row: The rollout, locked.
        decision: What was decided.
        now_s: Wall time.

    Returns:
        The devices that have a new desired state.

    Raises:
        IllegalTransitionError: A device or the rollout has changed its state in the meantime.
    """
    _save_devices(session, row, decision, now_s=now_s)
    row.stage_complete_at_s = decision.stage_complete_at_s
    match decision.action:
        case "halt":
            return end(session, row, RolloutOrder.HALT, reason=decision.reason, now_s=now_s)
        case "finish" if decision.leave > MAX_LEFT:
            return _leave(session, row, MAX_LEFT, now_s=now_s)
        case "finish":
            return finish(session, row, decision, now_s=now_s)
        case "advance":
            row.stage += 1
        case "hold":
            pass
    if decision.releases_control:
        row.control_released = True
    reason = decision.reason[:MAX_DETAIL_CHARS]
    if row.reason != reason:
        row.reason = reason
        log(session, row.id, action=decision.action, reason=reason, now_s=now_s)
    return start(session, row, decision.start, now_s=now_s)


def _save_devices(session: Session, row: RolloutRow, decision: Decision, *, now_s: float) -> None:
    """Save what has become of devices that have their order."""
    for failed, verdict in ((decision.silent, _SILENT), (decision.lost, _LOST)):
        if failed:
            event = DeploymentEvent.FAIL
            changes.move(session, row.id, failed, event, now_s=now_s, verdict=verdict)
            reason = named(failed, verdict.detail)
            log(session, row.id, action="expire", reason=reason, now_s=now_s)
    if parted := decision.parted:
        changes.move(session, row.id, parted, DeploymentEvent.WAIT, now_s=now_s)
        reason = named(parted, "offline before the release ran")
        log(session, row.id, action="wait", reason=reason, now_s=now_s)
    if back := decision.returned:
        changes.take_up_again(session, row.id, back, at=_moment(row, now_s))
        log(session, row.id, action="return", reason=named(back, "back"), now_s=now_s)


def start(session: Session, row: RolloutRow, devices: Sequence[str], *, now_s: float) -> list[str]:
    """Give devices that are online the release of a rollout.

    Args:
        session: The transaction.
        row: The rollout.
        devices: Devices whose deployments are pending.
        now_s: Wall time.

    Returns:
        The devices, which have a new desired state.

    Raises:
        IllegalTransitionError: A deployment is no longer pending.
    """
    if not devices:
        return []
    succeeded = deployments.counts(session, row.id)[DeploymentState.SUCCEEDED]
    start_rates.spend(session, row, succeeded, len(devices))
    _order(session, row, devices, DeploymentEvent.ASSIGN, now_s=now_s)
    reason = named(devices, f"for stage {row.stage}")
    log(session, row.id, action="start", reason=reason, now_s=now_s)
    return list(devices)


def finish(session: Session, row: RolloutRow, decision: Decision, *, now_s: float) -> list[str]:
    """End a rollout whose devices have finished, and leave its release to those that are offline.

    One that has come back since the decision was made gets its order now.

    Args:
        session: The transaction.
        row: The rollout.
        decision: Why it ends, and how many devices it ends without.
        now_s: Wall time.

    Returns:
        Those devices, which have a new desired state.

    Raises:
        IllegalTransitionError: It has ended already.
    """
    _close(session, row, RolloutOrder.FINISH, reason=decision.reason, now_s=now_s)
    absent = _leave(session, row, decision.leave, now_s=now_s)
    verdict = _ended(RolloutOrder.FINISH, decision.reason)
    taking_out.begin(session, row, WorkKind.CANCEL, verdict, now_s=now_s)
    return absent


def _leave(session: Session, row: RolloutRow, count: int, *, now_s: float) -> list[str]:
    """Leave the release to devices that are offline; return them."""
    absent = deployments.not_started(session, row.id, limit=count)
    if absent:
        _order(session, row, absent, DeploymentEvent.WAIT, now_s=now_s)
        reason = named(absent, "offline; the release is theirs when they return")
        log(session, row.id, action="leave", reason=reason, now_s=now_s)
    return absent


def end(
    session: Session,
    row: RolloutRow,
    order: RolloutOrder,
    *,
    reason: str,
    now_s: float,
    is_undone: bool = False,
) -> list[str]:
    """End a rollout before its time: none of its devices starts any more.

    Args:
        session: The transaction.
        row: The rollout, locked.
        order: `HALT` or `ABORT`.
        reason: Why.
        now_s: Wall time.
        is_undone: Whether it is rolled back: its devices go back, also if it is a rollback itself.

    Returns:
        The devices that go back, with a new desired state.

    Raises:
        IllegalTransitionError: It has ended already.
    """
    _close(session, row, order, reason=reason, now_s=now_s)
    kind, bad = WorkKind.TAKE_OUT, way_back.rids_of(session, row)
    if bad is not None and not is_undone:
        kind = WorkKind.LET_FINISH
        _let_go_on(session, row, bad, now_s=now_s)
    return taking_out.begin(session, row, kind, _ended(order, reason), now_s=now_s)


def _let_go_on(session: Session, row: RolloutRow, bad: str, *, now_s: float) -> None:
    """Leave their order to the devices of a rollback that ends: they finish by themselves.

    Args:
        session: The transaction.
        row: The rollout.
        bad: The release that those devices had.
        now_s: Wall time.
    """
    had = way_back.had(bad)
    if working := deployments.in_state(session, row.id, DeploymentState.ASSIGNED, where=had):
        changes.move(session, row.id, working, DeploymentEvent.WAIT, now_s=now_s)
    if ordered := deployments.in_state(session, row.id, DeploymentState.WAITING, where=had):
        reason = named(ordered, "still on the way back, and may finish it")
        log(session, row.id, action="leave", reason=reason, now_s=now_s)


def recall_all(session: Session, row: RolloutRow, *, reason: str, now_s: float) -> list[str]:
    """Take the order back from all devices that wait for the release of a rollout that has ended.

    Args:
        session: The transaction.
        row: The rollout, locked.
        reason: Why.
        now_s: Wall time.

    Returns:
        The devices that have a new desired state.
    """
    verdict = Verdict(error_code=_RECALLED, detail=reason[:MAX_DETAIL_CHARS])
    return taking_out.begin(session, row, WorkKind.RECALL, verdict, now_s=now_s)


def recall(
    session: Session, row: RolloutRow, *, release: str, reason: str, now_s: float
) -> list[str]:
    """Take the order back from devices that wait for one release of a rollout that has ended.

    Those of a rollback keep what they have: a revoked release is told to nobody.

    Args:
        session: The transaction.
        row: The rollout.
        release: The release.
        reason: Why.
        now_s: Wall time.

    Returns:
        The devices that have a new desired state.

    Raises:
        IllegalTransitionError: One of them has finished in the meantime.
    """
    waiting = deployments.in_state(session, row.id, DeploymentState.WAITING)
    wanted = deployments.targets(session, row.id, waiting)
    waiting = [device for device in waiting if wanted[device] == release]
    known = way_back.to_restore(session, row.id, but=way_back.rids_of(session, row))
    mine = {device: known[device] for device in waiting if device in known}
    back = taking_out.send_back(session, row, mine, now_s=now_s)
    verdict = Verdict(error_code=_RECALLED, detail=reason[:MAX_DETAIL_CHARS])
    event = DeploymentEvent.CANCEL
    changes.move(session, row.id, waiting, event, now_s=now_s, verdict=verdict)
    return back


def skip_device(session: Session, device: str, *, reason: str, now_s: float) -> None:
    """Take a device out of the rollouts that it takes part in, if any, and let it go back.

    One that is on its way back already keeps that order.

    Args:
        session: The transaction.
        device: The device.
        reason: Why.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: Its deployment has finished in the meantime.
    """
    for part in deployments.unfinished(session, device):
        verdict = Verdict(error_code="controller.skipped", detail=reason)
        if part.state in ORDERED_DEPLOYMENTS:
            bad = way_back.rids_of(session, session.get_one(RolloutRow, part.rollout))
            back = way_back.to_restore(session, part.rollout, but=bad)
            mine = {name: item for name, item in back.items() if name == device}
            taking_out.restore(session, part.rollout, part.model, mine, now_s=now_s)
        event = DeploymentEvent.CANCEL
        changes.move(session, part.rollout, [device], event, now_s=now_s, verdict=verdict)
        log(session, part.rollout, action="skip", reason=f"{device}: {reason}", now_s=now_s)


def _order(
    session: Session,
    row: RolloutRow,
    devices: Sequence[str],
    event: DeploymentEvent,
    *,
    now_s: float,
) -> None:
    """Give devices their desired state for a rollout, and record to what they can go back."""
    wanted = deployments.targets(session, row.id, devices)
    before = way_back.releases_before(session, row, wanted)
    revisions = desired.issue(
        session, row.model, wanted, rollout=row.id, now_s=now_s, windows=row.windows or ()
    )
    at = _moment(row, now_s)
    changes.order(session, row.id, revisions, before, event=event, stage=row.stage, at=at)


def _close(
    session: Session, row: RolloutRow, order: RolloutOrder, *, reason: str, now_s: float
) -> None:
    move(session, row, order)
    row.finished_at_s = now_s
    row.reason = reason[:MAX_DETAIL_CHARS]
    log(session, row.id, action=order, reason=reason, now_s=now_s)


def _ended(order: RolloutOrder, reason: str) -> Verdict:
    return Verdict(error_code=f"controller.{order}", detail=reason[:MAX_DETAIL_CHARS])


def _moment(row: RolloutRow, now_s: float) -> Moment:
    return Moment(now_s=now_s, clock_s=row.ran_s)
