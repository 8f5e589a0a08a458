"""Rollouts that follow another one: a rollback, and another try.

Rules:
- Each is a rollout of its own and of the same model, with the stages and the limits of the first;
  no other devices join.
- A rollback ends the first rollout if that has not ended, and no device that waits for its release
  gets it any more.
- A rollback without a named release brings each device to the release that it had before the first
  rollout. It takes only devices that still run the release of the first or are to run it. A device
  without such a release stays as it is, and the log of the rollback says so.
- Another try takes the devices that failed and, unless asked otherwise, those that were not
  reached; it leaves out those that another rollout started since.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping

from controller.domain.stages import selectors
from controller.domain.states import ACTIVE_ROLLOUTS, DeploymentState, RolloutOrder
from controller.errors import ConflictError
from controller.store import (
    deployments,
    free_devices,
    releases,
    rollout_steps,
    rollouts,
    stages,
    start_rates,
    starting_orders,
    way_back,
)
from controller.store.database import Transaction
from controller.store.rollouts import NewRollout
from controller.store.tables import ReleaseRow, RolloutRow


def new_id() -> str:
    """Return the identifier of a new rollout."""
    return f"r{secrets.token_hex(5)}"


def roll_back(
    transaction: Transaction, first: RolloutRow, release: ReleaseRow | None, *, now_s: float
) -> tuple[str, list[str]]:
    """Bring the devices that a rollout touched to another release.

    Args:
        transaction: The transaction.
        first: The rollout to undo, locked.
        release: To which release; None for what each device had before.
        now_s: Wall time.

    Returns:
        The identifier of the new rollout, and the devices that have a new desired state already.

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
    new, told = new_id(), []
    reason = f"rolled back by rollout {new}"
    if first.state in ACTIVE_ROLLOUTS:
        order = RolloutOrder.ABORT
        told += rollout_steps.end(transaction, first, order, reason=reason, now_s=now_s)
    else:
        told += rollout_steps.recall(transaction, first, reason=reason, now_s=now_s)
    if release is not None:
        deployed = way_back.started_devices(transaction, first.id)
        wanted = dict.fromkeys(deployed, release.digest)
        refuse_busy(free_devices.busy_among(transaction, first.model, deployed))
        remedy = f"`fleet rollout abort {first.id}` ends a rollout that has not ended"
    else:
        deployed, wanted = _had_before(transaction, first)
        remedy = f"`fleet rollout rollback {first.id} --to NAME:VERSION` takes all that it touched"
    if not deployed:
        raise ConflictError(
            f"no device has the release of rollout {first.id}: nothing to roll back", remedy=remedy
        )
    if not wanted:
        refuse_busy(free_devices.busy_among(transaction, first.model, deployed))
        raise ConflictError(
            f"no device of rollout {first.id} has a release to which it could go back now",
            remedy=f"name one: `fleet rollout rollback {first.id} --to NAME:VERSION`",
        )
    _follow(transaction, first, new, wanted, is_retry=False, now_s=now_s)
    left = [device for device in deployed if device not in wanted]
    if left:
        reason = rollouts.named(left, "left alone: busy, or without a release to go back to")
        rollouts.log(transaction, new, action="skip", reason=reason, now_s=now_s)
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
    try:
        new, told = roll_back(transaction, halted, None, now_s=now_s)
    except ConflictError as exc:  # nothing has been changed
        what, told = f"nothing is reverted: {exc.message}", []
    else:
        what = f"rollout {new} reverts what has the release"
    rollouts.log(transaction, halted.id, action="revert", reason=what, now_s=now_s)
    return told


def try_again(
    transaction: Transaction, first: RolloutRow, *, only_failed: bool, now_s: float
) -> str:
    """Bring the release of a rollout to the devices that do not run it.

    Args:
        transaction: The transaction.
        first: The rollout.
        only_failed: Leave out the devices that have not failed.
        now_s: Wall time.

    Returns:
        The identifier of the new rollout.

    Raises:
        IllegalTransitionError: The release was revoked.
        ConflictError: No device is left, or one of them takes part in another rollout.
    """
    releases.get_published(transaction, first.release)
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
    new = new_id()
    _follow(transaction, first, new, wanted, is_retry=True, now_s=now_s)
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


def _had_before(transaction: Transaction, first: RolloutRow) -> tuple[list[str], dict[str, str]]:
    """Return the devices that have the release of a rollout, and to what each can go back now."""
    found = way_back.still_on(transaction, first.id)
    taken = free_devices.busy_among(transaction, first.model, list(found))
    back = {
        device: before
        for device, before in found.items()
        if before is not None and device not in taken
    }
    return list(found), back


def _follow(
    transaction: Transaction,
    first: RolloutRow,
    new: str,
    wanted: dict[str, str],
    *,
    is_retry: bool,
    now_s: float,
) -> None:
    counts = Counter(wanted.values())
    most = max(sorted(counts), key=lambda digest: counts[digest])
    specs = stages.of_rollout(transaction, first.id)
    last = len(selectors(specs))
    rollouts.begin(
        transaction,
        NewRollout(
            id=new,
            release=most,
            model=first.model,
            selector=first.selector,
            limits=rollouts.limits(first),
            stages=specs,
            order=starting_orders.as_before(transaction, first.id, first.spread, last),
            spread=first.spread,
            rate=start_rates.of_rollout(transaction, first.id),
            origin=first.id,
            is_retry=is_retry,
            created_at_s=now_s,
            on_halt="revert" if is_retry and first.on_halt == "revert" else "keep",
            priority=first.priority,
            windows=tuple(first.windows or ()) if is_retry else (),
            releases={device: digest for device, digest in wanted.items() if digest != most},
        ),
        sorted(wanted),
    )
