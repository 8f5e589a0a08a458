"""Rollouts that follow another one: a rollback, and another try.

Rules:
- Each is a rollout of its own and of the same model, with the stages and the limits of the first;
  no other devices join.
- A way back goes as fast as stages, limits and `max_in_flight` let it: it does not soak, has no
  rate, and waits for no approval, nor for devices that are offline.
- A way back is a rollback to what the devices had, unless the pace is to be kept. One to another
  release, or of a rollback, brings what has not been proved: it keeps the pace of the rollout.
- A rollback ends the first rollout if that has not ended, and no device that waits for its release
  gets it any more.
- A rollback without a named release brings each device to the release that it had before the first
  rollout. It takes only devices that still run the release of the first or are to run it. A device
  without such a release stays as it is, and the log of the rollback says so.
- Another try takes the devices that failed and, unless asked otherwise, those that were not
  reached; it leaves out those that another rollout started since.
- Which devices it takes is decided in a transaction that only reads, before the first is ended.
"""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.gates.states import GateState
from controller.domain.stages import selectors
from controller.domain.starting_order import places
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DeploymentState,
    RolloutOrder,
    RolloutState,
    WorkKind,
)
from controller.errors import ConflictError
from controller.services.follow_up_pace import Pace, hurried, pace_of, with_own_pace
from controller.store import (
    deployments,
    free_devices,
    gates,
    new_rollouts,
    releases,
    rollout_log,
    rollout_steps,
    rollout_work,
    rollouts,
    stage_shadows,
    stages,
    starting_orders,
    taking_out,
    way_back,
)
from controller.store.database import Transaction
from controller.store.new_deployments import intake
from controller.store.new_rollouts import NewRollout
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import RolloutRow

MAX_NAMED: Final = 5
"""Devices that a remedy names."""


def new_id() -> str:
    """Return the identifier of a new rollout."""
    return f"r{secrets.token_hex(5)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What becomes of the devices of a rollout in the one that follows it."""

    wanted: Mapping[str, str]
    """Each device with the release that it is brought to."""

    left: Sequence[str] = ()
    """Devices that a rollback leaves alone."""

    is_way_back: bool = False
    """Whether a rollback brings each device to what it had before a rollout that was none."""


def rollback(transaction: Transaction, first: RolloutRow, release: ReleaseRow | None) -> FollowUp:
    """Decide which devices of a rollout are brought to another release; this only reads.

    Args:
        transaction: The transaction.
        first: The rollout to undo.
        release: To which release; None for what each device had before.

    Raises:
        ConflictError: The release is of another model, no device can be rolled back, or one of them
            takes part in another rollout of the model.
    """
    if release is not None and release.name != first.model:
        raise ConflictError(
            f"rollout {first.id} is of model {first.model}, and {release.name}:{release.version} "
            "is of another one",
            remedy=f"name a release of {first.model}: `fleet release list` shows them",
        )
    if release is not None and release.digest == first.release and first.state in ACTIVE_ROLLOUTS:
        raise ConflictError(
            f"{release.name}:{release.version} is what rollout {first.id} brings",
            remedy=f"name another release, or `fleet rollout abort {first.id}` ends it",
        )
    if release is not None:
        deployed = way_back.started_devices(transaction, first.id)
        wanted = dict.fromkeys(deployed, release.digest)
        refuse_busy(_busy(transaction, first, deployed))
        remedy = f"`fleet rollout abort {first.id}` ends a rollout that has not ended"
    else:
        deployed, wanted = _had_before(transaction, first)
        remedy = f"`fleet rollout rollback {first.id} --to NAME:VERSION` takes all that it touched"
    if not deployed:
        raise ConflictError(
            f"no device has the release of rollout {first.id}: nothing to roll back", remedy=remedy
        )
    if not wanted:
        refuse_busy(_busy(transaction, first, deployed))
        raise ConflictError(
            f"no device of rollout {first.id} has a release to which it could go back now",
            remedy=_without_way_back(transaction, first, deployed),
        )
    left = [device for device in deployed if device not in wanted]
    had = release is None or way_back.had_only(transaction, first.id, release.digest)
    is_way_back = had and not _is_rollback(transaction, first)
    return FollowUp(wanted=wanted, left=left, is_way_back=is_way_back)


def roll_back(
    transaction: Transaction,
    first: RolloutRow,
    found: FollowUp,
    *,
    keep_pace: bool = False,
    now_s: float,
) -> tuple[str, list[str]]:
    """Bring the devices that a rollout touched to another release.

    Args:
        transaction: The transaction.
        first: The rollout to undo, locked.
        found: Its devices.
        keep_pace: Whether to soak, keep the rate and wait for approvals as the first one.
        now_s: Wall time.

    Returns:
        The identifier of the new rollout, and the devices that have a new desired state already.
    """
    new = new_id()
    reason = f"rolled back by rollout {new}"
    if first.state in ACTIVE_ROLLOUTS:
        order = RolloutOrder.ABORT
        told = rollout_steps.end(
            transaction, first, order, reason=reason, now_s=now_s, is_undone=True
        )
    else:
        told = rollout_steps.recall_all(transaction, first, reason=reason, now_s=now_s)
    is_way_back = found.is_way_back and not keep_pace
    pace = pace_of(transaction, first if is_way_back else with_own_pace(transaction, first))
    if is_way_back:
        pace = hurried(pace)
    _follow(
        *(transaction, first, new, found.wanted, pace),
        is_retry=False,
        is_way_back=is_way_back,
        now_s=now_s,
    )
    if found.left:
        reason = rollout_log.named(
            found.left, "left alone: busy, or without a release to go back to"
        )
        rollout_log.log(transaction, new, action="skip", reason=reason, now_s=now_s)
    return new, told


def revert_halted(transaction: Transaction, halted: RolloutRow, *, now_s: float) -> list[str]:
    """Roll back a rollout that a rule has just halted, as its operator asked when it was made.

    Args:
        transaction: The transaction of the halt.
        halted: The rollout, locked.
        now_s: Wall time.

    Returns:
        The devices that have a new desired state already.
    """
    told: list[str] = []
    try:
        _refuse_superseded(transaction, halted)
        found = rollback(transaction, halted, None)
    except ConflictError as exc:  # nothing has been changed
        what = f"nothing is reverted: {exc.message}"
    else:
        new, told = roll_back(transaction, halted, found, now_s=now_s)
        what = f"rollout {new} reverts what has the release"
    rollout_log.log(transaction, halted.id, action="revert", reason=what, now_s=now_s)
    return told


def _refuse_superseded(transaction: Transaction, halted: RolloutRow) -> None:
    """Refuse to revert devices that another rollout brings to its release now.

    Raises:
        ConflictError: It does.
    """
    newer = halted.superseded_by
    if newer in free_devices.unfinished(transaction, halted.model):
        raise ConflictError(f"rollout {newer} takes the devices in", remedy=f"watch {newer}")


def another_try(transaction: Transaction, first: RolloutRow, *, only_failed: bool) -> FollowUp:
    """Decide to which devices the release of a rollout is brought again; this only reads.

    Args:
        transaction: The transaction.
        first: The rollout.
        only_failed: Leave out the devices that have not failed.

    Raises:
        IllegalTransitionError: The release was revoked.
        ConflictError: A gate stopped it, no device is left, or one of them takes part in another
            rollout.
    """
    releases.get_published(transaction, first.release)
    asked = () if first.control_released else gates.views(transaction, first)
    for gate in asked:
        if gate.state is not GateState.PASS and not gate.is_waived:
            has = "failed" if gate.state is GateState.FAIL else "has not passed"
            can_go_on = first.state == RolloutState.HALTED and not rollouts.rollback_of(
                transaction, first.id
            )
            resume = f", or `fleet rollout resume {first.id}` goes on with this one"
            raise ConflictError(
                f"gate {gate.text} of rollout {first.id} {has}: a retry has no gates",
                remedy=f"make a new rollout with gates{resume if can_go_on else ''}",
            )
    specs = stages.of_rollout(transaction, first.id)
    for stage, shadow in stage_shadows.views(transaction, first.id, specs).items():
        if shadow.holds:
            raise ConflictError(
                f"the shadow before stage {stage} of rollout {first.id} has not passed: a retry "
                "has none",
                remedy="make a new rollout with it",
            )
    states = [DeploymentState.FAILED]
    if not only_failed:
        states.append(DeploymentState.CANCELLED)
    wanted = deployments.unreached(transaction, first.id, *states)
    known = releases.published(transaction, set(wanted.values()))
    wanted = {device: digest for device, digest in wanted.items() if digest in known}
    if not wanted:
        what = "that failed" if only_failed else "without its release"
        raise ConflictError(
            f"rollout {first.id} has no device {what} that could be tried again",
            remedy=f"`fleet rollout show {first.id}` lists its devices",
        )
    refuse_busy(free_devices.busy_among(transaction, first.model, sorted(wanted)))
    return FollowUp(wanted=wanted)


def try_again(transaction: Transaction, first: RolloutRow, found: FollowUp, *, now_s: float) -> str:
    """Bring the release of a rollout to devices that do not run it.

    Args:
        transaction: The transaction.
        first: The rollout.
        found: Its devices.
        now_s: Wall time.

    Returns:
        The identifier of the new rollout.
    """
    new = new_id()
    pace = pace_of(transaction, first)
    _follow(
        *(transaction, first, new, found.wanted, pace),
        is_retry=True,
        is_way_back=first.is_way_back,
        now_s=now_s,
    )
    return new


def refuse_rolled_back(transaction: Transaction, rollout: str) -> None:
    """Refuse a rollout that was rolled back.

    Raises:
        ConflictError: It was.
    """
    rollback = rollouts.rollback_of(transaction, rollout)
    if rollback is not None:
        raise ConflictError(
            f"rollout {rollout} was rolled back by rollout {rollback}: it cannot go on",
            remedy="make a new one with `fleet rollout create`",
        )


def refuse_busy(busy: Mapping[str, str]) -> None:
    """Refuse devices that take part in an unfinished rollout of the same model.

    Args:
        busy: Such devices, with their rollouts.

    Raises:
        ConflictError: There is one.
    """
    for device, rollout in busy.items():
        raise ConflictError(
            f"device {device} takes part in rollout {rollout}, which has not ended",
            remedy=f"wait for it, choose other devices, or end it with `fleet rollout abort "
            f"{rollout}`: what has the release keeps it",
        )


def _busy(transaction: Transaction, first: RolloutRow, devices: Collection[str]) -> dict[str, str]:
    """Return those of some devices that an unfinished rollout has, other than the one to undo."""
    return free_devices.busy_among(transaction, first.model, devices, but=first.id)


def _had_before(transaction: Transaction, first: RolloutRow) -> tuple[list[str], dict[str, str]]:
    """Return the devices that have the release of a rollout, and to what each can go back now."""
    is_ending = rollout_work.is_left(transaction, first.id, WorkKind.TAKE_OUT)
    is_ending |= first.state in ACTIVE_ROLLOUTS
    ending = taking_out.TAKEN_BACK[WorkKind.TAKE_OUT if is_ending else WorkKind.RECALL]
    found = way_back.still_on(transaction, first.id, going_back=ending)
    taken = _busy(transaction, first, list(found))
    back = {
        device: before
        for device, before in found.items()
        if before is not None and device not in taken
    }
    return list(found), back


def _without_way_back(transaction: Transaction, first: RolloutRow, devices: Sequence[str]) -> str:
    """Return what helps devices that have nothing to go back to."""
    has_other = releases.has_other(transaction, first.model, first.release)
    chosen = f"id in ({','.join(devices)})" if len(devices) <= MAX_NAMED else first.selector
    part = f" --selector {shlex.quote(chosen)}" if chosen else ""
    if has_other and len(devices) > MAX_NAMED:  # the rollout may have taken others away from one
        part = " --selector SELECTOR"
    end = f"`fleet rollout abort {first.id}`, then " if first.state in ACTIVE_ROLLOUTS else ""
    remedy = f"{end}`fleet model remove {first.model}{part}` takes the model away from them"
    if has_other:
        remedy += f"; or name a release: `fleet rollout rollback {first.id} --to NAME:VERSION`"
    return remedy


def _is_rollback(transaction: Transaction, row: RolloutRow) -> bool:
    """Tell whether a rollout undoes another one, or is another try of such a one."""
    while row.origin is not None and row.is_retry:
        row = rollouts.get(transaction, row.origin)
    return row.origin is not None


def _follow(
    transaction: Transaction,
    first: RolloutRow,
    new: str,
    wanted: Mapping[str, str],
    pace: Pace,
    *,
    is_retry: bool,
    is_way_back: bool,
    now_s: float,
) -> None:
    counts = Counter(wanted.values())
    most = max(sorted(counts), key=lambda digest: counts[digest])
    own = {device: digest for device, digest in wanted.items() if digest != most}
    last = len(selectors(pace.stages))
    order = starting_orders.as_before(transaction, first.id, first.spread, last)
    new_rollouts.begin(
        transaction,
        NewRollout(
            id=new,
            release=most,
            model=first.model,
            selector=first.selector,
            limits=pace.limits,
            stages=pace.stages,
            spread=first.spread,
            rate=pace.rate,
            origin=first.id,
            is_retry=is_retry,
            is_way_back=is_way_back,
            created_at_s=now_s,
            on_halt="revert" if is_retry and first.on_halt == "revert" else "keep",
            priority=first.priority,
            windows=tuple(first.windows or ()) if is_retry else (),
            releases=own,
        ),
        intake(places(order, new, sorted(wanted)), releases=own),
    )
