"""Goes on with a rollout that was paused or halted.

Rules:
- A halted rollout goes on without what failed, and with what its halt cancelled: but for devices
  that another rollout started since, that the operator took out, or whose release was revoked.
- One that is held out of rollouts stays out, but in a rollback or retry, which names its devices.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState, RolloutOrder, WorkKind
from controller.store import deployment_changes as changes
from controller.store import (
    deployments,
    free_devices,
    gates,
    penalties,
    rollout_work,
    stage_shadows,
)
from controller.store.releases import published
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import RolloutRow
from controller.store.rollouts import move
from controller.store.tables import MAX_DETAIL_CHARS
from controller.store.taking_in import LOST


class Reopening(NamedTuple):
    """With which of its cancelled devices a halted rollout goes on, sorted.

    Devices that another rollout started since are in none of these.
    """

    again: list[str]
    revoked: list[str]
    """Left out, as what they are brought to was revoked."""

    held_out: list[str]
    """Left out, as they are held out of rollouts that do not name their devices."""


def to_reopen(session: Session, row: RolloutRow) -> Reopening:
    """Return with which of its cancelled devices a halted rollout goes on.

    Args:
        session: The transaction.
        row: The rollout.
    """
    wanted = deployments.unreached(session, row.id, DeploymentState.CANCELLED)
    known = published(session, set(wanted.values()))
    held = set() if row.origin is not None else penalties.held_out_among(session, list(wanted))
    return Reopening(
        again=[each for each, digest in wanted.items() if digest in known and each not in held],
        revoked=[each for each, digest in wanted.items() if digest not in known],
        held_out=[each for each, digest in wanted.items() if digest in known and each in held],
    )


def resume(
    session: Session,
    row: RolloutRow,
    *,
    found: Reopening | None = None,
    now_s: float,
) -> None:
    """Go on with a paused rollout, or with a halted one without regard to what failed so far.

    Args:
        session: The transaction.
        row: The rollout, locked.
        found: If it was halted, with which devices it goes on, as `to_reopen` says.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: It is neither paused nor halted.
    """
    move(session, row, RolloutOrder.RESUME)
    reason = "resumed by the operator"
    if found is not None:
        row.finished_at_s = None
        row.superseded_by = row.awaited_by = None
        row.stage_complete_at_s = None
        # What was approved then was another standing than that with which it goes on.
        row.approved_stage = min(row.approved_stage, row.stage)
        row.gates_passed_by_hand = min(row.gates_passed_by_hand, row.stage - 1)
        failed = changes.acknowledge_failures(session, row.id)
        waived = gates.waive_failed(session, row.id)
        if stage_shadows.waive_failed(session, row, now_s=now_s):
            waived.append(f"the shadow before stage {row.stage}")
        first, rest = found.again[: rollout_work.AT_ONCE], found.again[rollout_work.AT_ONCE :]
        free = free_devices.still_free(session, row.id, row.model, first, joins=False)
        changes.reopen(session, row.id, sorted(free))
        rollout_work.save(session, row.id, WorkKind.REOPEN, dict.fromkeys(rest))
        ordered = deployments.counts(session, row.id)[DeploymentState.WAITING]
        goes_on = len(free) + len(rest) + ordered
        reason += f": {failed} failed are acknowledged, {goes_on} go on"
        if waived:
            reason += f"; without {', '.join(waived)}"
        left_out = {
            "left out: the release was revoked": found.revoked,
            "left out: held out of rollouts, as installs failed": found.held_out,
            LOST: [device for device in first if device not in free],
        }
        for why, devices in left_out.items():
            if devices:
                log(session, row.id, action="skip", reason=named(devices, why), now_s=now_s)
    row.reason = reason = reason[:MAX_DETAIL_CHARS]
    log(session, row.id, action=RolloutOrder.RESUME, reason=reason, now_s=now_s)
