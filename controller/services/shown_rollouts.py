"""Rollouts as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from controller.domain.rollout_policy import stage_states, stage_targets
from controller.domain.states import DeploymentState, shown_state
from controller.domain.transfers import FETCHING, together
from controller.rollout_schemas import Deployment, Rollout, RolloutEvent
from controller.services import shown_gates
from controller.services.transfers import Transfers, shown_transfer
from controller.store import deployments, releases, rollout_work, rollouts, way_back
from controller.store.database import Transaction
from controller.store.tables import DeploymentRow, ReleaseRow, RolloutRow
from wire.codec import convert

MAX_EVENTS = 1000
_PARTS = tuple(part.name for part in fields(Deployment) if part.name != "transfer")


def outline(transaction: Transaction, row: RolloutRow) -> Rollout:
    """Return a rollout without its deployments and its log.

    Args:
        transaction: The transaction.
        row: The rollout.

    Returns:
        How far it is.
    """
    view = rollouts.view(transaction, row, with_candidates=False)
    release = releases.get(transaction, row.release)
    numbered = enumerate(zip(stage_targets(view), stage_states(view), strict=True), start=1)
    return convert(
        {
            "id": row.id,
            "release": _name(release),
            "model": row.model,
            "selector": row.selector,
            "rollback_of": None if row.is_retry else row.origin,
            "retry_of": row.origin if row.is_retry else None,
            "state": row.state,
            "reason": row.reason,
            "created_at_s": row.created_at_s,
            "created_by": row.created_by,
            "finished_at_s": row.finished_at_s,
            "stages": [
                {"number": number, "target": target, "state": state}
                for number, (target, state) in numbered
            ],
            "counts": deployments.shown_counts(transaction, row.id),
            "preparing": rollout_work.left(transaction, row.id),
            "control": view.control,
            "acknowledged": view.acknowledged,
            "left_out": deployments.count_left_out(transaction, row.id),
        },
        Rollout,
    )


def whole(
    transaction: Transaction, row: RolloutRow, transfers: Transfers, *, limit: int
) -> Rollout:
    """Return a rollout with its deployments and its log.

    Args:
        transaction: The transaction.
        row: The rollout.
        transfers: The transfers that run.
        limit: The greatest number of deployments.

    Returns:
        All that is known of it.
    """
    shown = outline(transaction, row)
    shown.gates = shown_gates.last(transaction, row)
    shown.previous = way_back.previous_counts(transaction, row.id)
    parts = deployments.of_rollout(transaction, row.id, limit=limit)
    shown.deployments = [_deployment(*part, transfers) for part in parts]
    _show_transfers(shown, row.model, deployments.fetching(transaction, row.id), transfers)
    shown.events = [
        RolloutEvent(at_s=item.at_s, action=item.action, reason=item.reason, actor=item.actor)
        for item in rollouts.events(transaction, row.id, limit=MAX_EVENTS)
    ]
    return shown


def _show_transfers(
    shown: Rollout, model: str, fetching: Sequence[tuple[str, int]], transfers: Transfers
) -> None:
    """Add what the devices that fetch tell together, for each stage and for all."""
    known = [(stage, transfers.of(device, model)) for device, stage in fetching]
    running = [(stage, transfer) for stage, transfer in known if transfer is not None]
    shown.transfers = together([transfer for _, transfer in running])
    for part in shown.stages:
        part.transfers = together([t for stage, t in running if stage == part.number])


def _deployment(
    part: DeploymentRow, online: bool, release: ReleaseRow, transfers: Transfers
) -> Deployment:
    known = {name: getattr(part, name) for name in _PARTS}
    state = shown_state(DeploymentState(part.state), online=online)
    shown = convert(known | {"state": state, "release": _name(release)}, Deployment)
    if part.state == DeploymentState.ASSIGNED and part.phase == FETCHING:
        shown.transfer = shown_transfer(transfers.of(part.device, part.model))
    if shown.transfer is not None:  # the table has the figures of some time ago
        shown.done_bytes = shown.transfer.done_bytes
        shown.total_bytes = shown.transfer.total_bytes
    return shown


def _name(release: ReleaseRow) -> str:
    return f"{release.name}:{release.version}"
