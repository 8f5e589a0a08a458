"""Takes the devices of a new rollout out of older ones that have not started them.

Rules:
- The transaction that saves the new rollout locks the older ones and takes devices out, as many as
  one transaction may. The rest is saved as work of the older ones: they go on when it is done, and
  the new one takes no device in before. So no device is in two unfinished rollouts at any time,
  also if the controller is killed.
- A device that has started since it was decided what moves stays, as those that had before.
- Both logs say what moved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Sized
from dataclasses import replace

from controller.domain.deployment_codes import SUPERSEDED
from controller.domain.selectors import Selector
from controller.domain.states import DeploymentState, WorkKind
from controller.domain.supersession import Met, may_take
from controller.errors import ConflictError
from controller.rollout_schemas import RolloutRequest
from controller.store import (
    deployments,
    free_devices,
    rollout_log,
    rollout_work,
    rollouts,
    taking_out,
)
from controller.store.database import Transaction
from controller.store.deployment_changes import Verdict
from controller.store.rollout_tables import RolloutRow


def meeting(transaction: Transaction, model: str, selector: Selector) -> list[Met]:
    """Return the unfinished rollouts of a model that have devices which match a selector.

    Args:
        transaction: The transaction.
        model: The model.
        selector: Which devices.
    """
    older = [
        rollouts.get(transaction, rollout)
        for rollout in free_devices.unfinished(transaction, model)
    ]
    ids = {row.id for row in older}
    found = {
        row.id: Met(rollout=row.id, priority=row.priority, claim=_claim(transaction, row, ids))
        for row in older
    }
    for device, rollout, state in free_devices.kept(transaction, list(found), selector):
        found[rollout].add(device, DeploymentState(state))
    return [met for met in found.values() if met.moves or met.stays]


def refuse(found: Sequence[Met], request: RolloutRequest) -> None:
    """Refuse a new rollout that may not take devices out of others.

    Args:
        found: The others.
        request: The new rollout.

    Raises:
        ConflictError: There is one of which it may not.
    """
    for met in found:
        if met.claim and _takes(met, request):
            raise ConflictError(
                f"rollout {met.rollout} {met.claim}: no other one takes devices out of it",
                remedy="wait until that is over, or end one of the two with `fleet rollout abort`",
            )
    kept = [met for met in found if not _takes(met, request)]
    if not kept:
        return
    met = min(kept, key=lambda each: each.first)
    if met.priority > request.priority:
        raise ConflictError(
            f"device {met.first} takes part in rollout {met.rollout}, whose priority "
            f"{met.priority} is above {request.priority}",
            remedy=f"wait for it, choose other devices, or give --priority {met.priority} "
            "--supersede",
        )
    raise ConflictError(
        f"device {met.first} takes part in rollout {met.rollout}, which has not ended",
        remedy="wait for it, choose other devices, take those that have not started with "
        f"--supersede, or end it with `fleet rollout abort {met.rollout}`: what has the release "
        "keeps it",
    )


def refuse_started(found: Sequence[Met], devices: Sized) -> None:
    """Refuse a new rollout all of whose devices have started in older ones.

    Args:
        found: The older rollouts.
        devices: Those that can start in the new one.

    Raises:
        ConflictError: There is none.
    """
    if found and not devices:
        raise ConflictError(
            f"all devices have started in rollout {found[0].rollout}: nothing could begin",
            remedy="wait until it has ended, or end it with "
            f"`fleet rollout abort {found[0].rollout}`",
        )


def movable(found: Sequence[Met]) -> list[str]:
    """Return the devices that would move."""
    return sorted(device for met in found for device in met.moves)


def still(transaction: Transaction, found: Sequence[Met]) -> list[Met]:
    """Return what older rollouts have now of the devices that were found in them.

    Args:
        transaction: The transaction, which locks them.
        found: What was found before.
    """
    now = []
    for met in found:
        rollouts.get(transaction, met.rollout, lock=True)
        pending = deployments.in_state(transaction, met.rollout, DeploymentState.PENDING)
        moves = sorted(frozenset(pending).intersection(met.moves))
        late = free_devices.kept_among(
            transaction, met.rollout, sorted(frozenset(met.moves).difference(moves))
        )
        now.append(replace(met, moves=moves, stays=sorted([*met.stays, *late])))
    return now


def take(
    transaction: Transaction,
    new: str,
    found: Sequence[Met],
    devices: Collection[str],
    *,
    now_s: float,
) -> None:
    """Take devices out of older rollouts, and save what is left of that; the new one comes then.

    Args:
        transaction: The transaction.
        new: The new rollout.
        found: The older ones as they are now, locked.
        devices: Those that the new one takes in.
        now_s: Wall time.
    """
    room = rollout_work.AT_ONCE
    verdict = Verdict(error_code=SUPERSEDED, detail=f"rollout {new} took the device")
    for met in found:
        row = rollouts.get(transaction, met.rollout)
        moves = [device for device in met.moves if device in devices]
        first, rest = moves[:room], moves[room:]
        room -= len(first)
        taking_out.let_go(transaction, row, first, verdict, now_s=now_s)
        rollout_work.save(transaction, row.id, WorkKind.LET_GO, dict.fromkeys(rest), verdict)
        row.superseded_by = new
        row.awaited_by = new if met.stays else None
        what = f"moved to rollout {new}"
        reason = rollout_log.named(moves, what) if moves else f"no device {what}: all have started"
        rollout_log.log(transaction, row.id, action="supersede", reason=reason, now_s=now_s)


def tell(transaction: Transaction, new: str, found: Sequence[Met], *, now_s: float) -> None:
    """Write into the log of the new rollout what it took out of which others."""
    for met in found:
        told = [(met.moves, f"taken out of rollout {met.rollout}")] if met.moves else []
        if met.stays:
            told.append((met.stays, f"to finish in rollout {met.rollout} first"))
        reason = "; ".join(rollout_log.named(sorted(devices), what) for devices, what in told)
        rollout_log.log(transaction, new, action="supersede", reason=reason, now_s=now_s)


def _claim(transaction: Transaction, row: RolloutRow, unfinished: Collection[str]) -> str:
    """Say what has been promised of a rollout's devices; empty for nothing.

    Args:
        transaction: The transaction.
        row: The rollout.
        unfinished: All unfinished rollouts of its model.
    """
    if row.superseded_by in unfinished:
        return f"is superseded by rollout {row.superseded_by}"
    if older := free_devices.awaited(transaction, row.id):
        return f"takes in the devices of rollout {older} when that ends"
    if rollout_work.is_left(transaction, row.id, WorkKind.LET_GO):
        return "still lets go of devices that were taken out of it"
    return ""


def _takes(met: Met, request: RolloutRequest) -> bool:
    return may_take(met, priority=request.priority, asked=request.supersede)
