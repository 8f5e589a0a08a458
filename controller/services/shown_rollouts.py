"""Rollouts as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from controller.domain.failure_limits import failures, share_of
from controller.domain.rollout_view import RolloutView, StageSpec
from controller.domain.stage_progress import stage_states, stage_targets, targets_of
from controller.domain.stage_shadow import ShadowView
from controller.domain.states import ACTIVE_ROLLOUTS, DeploymentState, RolloutState, shown_state
from controller.domain.transfers import FETCHING, together
from controller.rollout_control_schemas import ShownLimits
from controller.rollout_schemas import (
    Deployment,
    DevicePart,
    OutcomeGroup,
    Rollout,
    RolloutEvent,
)
from controller.services import gate_times, shown_gates, stage_checks
from controller.services.transfers import Transfers, shown_transfer
from controller.store import (
    control_group,
    deployments,
    outcomes,
    releases,
    rollout_log,
    rollout_work,
    rollouts,
    stage_shadows,
    start_rates,
    way_back,
)
from controller.store.database import Transaction
from controller.store.model_tables import DesiredModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow
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
    # What an end cancelled is no more among the devices, but the stages were meant for all.
    is_over = row.state not in ACTIVE_ROLLOUTS
    meant = row.initial_devices
    targets = targets_of(view.stages, meant, meant) if is_over else stage_targets(view)
    stages = zip(view.stages, targets, stage_states(view), strict=True)
    rate = start_rates.of_rollout(transaction, row.id)
    shadows = stage_shadows.views(transaction, row.id, view.stages)
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
                {
                    "number": number,
                    "target": target,
                    "state": state,
                    "selector": spec.selector,
                    "soak_s": row.soak_s if spec.soak_s is None else spec.soak_s,
                    "approval": number < len(view.stages)
                    and (row.approval if spec.approval is None else spec.approval),
                    "shadow": _shadow(spec, shadows.get(number)),
                }
                for number, (spec, target, state) in enumerate(stages, start=1)
            ],
            "spread": row.spread,
            "rate": asdict(shown) if (shown := stage_checks.shown_rate(rate)) else None,
            "rate_now": rate.at(view.succeeded) if rate else None,
            "counts": deployments.shown_counts(transaction, row.id),
            "preparing": rollout_work.left(transaction, row.id),
            "control": view.control or _kept_to_the_end(transaction, row),
            "acknowledged": view.acknowledged,
            "failures": _failures(view),
            "priority": row.priority,
            "superseded_by": row.superseded_by,
            "limits": {part.name: getattr(row, part.name) for part in fields(ShownLimits)},
            "windows": row.windows or [],
            "left_out": deployments.count_left_out(transaction, row.id),
        },
        Rollout,
    )


def whole(
    transaction: Transaction,
    row: RolloutRow,
    transfers: Transfers,
    *,
    limit: int,
    state: DeploymentState | None = None,
) -> Rollout:
    """Return a rollout with its deployments and its log.

    Args:
        transaction: The transaction.
        row: The rollout.
        transfers: The transfers that run.
        limit: The greatest number of deployments.
        state: Only the deployments that are shown in this state; None for all.

    Returns:
        All that is known of it.
    """
    shown = outline(transaction, row)
    shown.gates = shown_gates.last(transaction, row)
    shown.next_look_in_s = gate_times.next_look_in_s(transaction, row)
    shown.rolled_back_by = rollouts.rollback_of(transaction, row.id)
    shown.retried_by = rollouts.retries_of(transaction, row.id)
    shown.previous = way_back.previous_counts(transaction, row.id)
    shown.outcomes = [convert(each, OutcomeGroup) for each in outcomes.groups(transaction, row.id)]
    parts = deployments.of_rollout(transaction, row.id, limit=limit, state=state)
    shown.deployments = [_deployment(*part, transfers) for part in parts]
    _show_transfers(shown, row.model, deployments.fetching(transaction, row.id), transfers)
    shown.events = [
        RolloutEvent(at_s=item.at_s, action=item.action, reason=item.reason, actor=item.actor)
        for item in rollout_log.events(transaction, row.id, limit=MAX_EVENTS)
    ]
    return shown


def of_device(
    transaction: Transaction, row: RolloutRow, device: str, transfers: Transfers
) -> DevicePart:
    """Return one device's part in a rollout.

    Args:
        transaction: The transaction.
        row: The rollout.
        device: The device.
        transfers: The transfers that run.

    Raises:
        UnknownDeviceError: It has no part in the rollout.
    """
    part, online, release = outcomes.part(transaction, row.id, device)
    wanted = transaction.get(DesiredModelRow, (device, row.model))
    known = {"previous": part.previous, "desired": wanted.release if wanted else None}
    named = {
        name: _name(releases.get(transaction, digest)) if digest else ""
        for name, digest in known.items()
    }
    return DevicePart(
        rollout=row.id,
        deployment=_deployment(part, online, release, transfers),
        online=online,
        is_control=part.is_control,
        ahead=outcomes.count_ahead(transaction, part),
        **named,
    )


def _kept_to_the_end(transaction: Transaction, row: RolloutRow) -> int:
    """Return how many devices of a rollout that was stopped were its control group."""
    is_stopped = row.state in {RolloutState.HALTED, RolloutState.ABORTED}
    return control_group.count_stopped(transaction, row.id) if is_stopped else 0


def _shadow(spec: StageSpec, found: ShadowView | None) -> dict[str, object] | None:
    """Return the shadow for which a stage waits; None if it needs none."""
    if spec.shadow is None or found is None:
        return None
    known = {"state": found.state, "reason": found.reason, "waived": found.is_waived}
    return asdict(spec.shadow) | known


def _failures(view: RolloutView) -> dict[str, float]:
    """Return who failed in which way, what share is certain, and what it is at worst."""
    share = share_of(view)
    worst = {"certain_percent": share.certain_percent, "worst_percent": share.worst_percent}
    return asdict(failures(view)) | worst


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
