"""Takes devices in to a rollout, part by part, as its order has decided.

Rules:
- Devices are taken in only when those of ended rollouts of the model are out: they may be the same.
- What has changed since the order counts: a device that is no longer enrolled, or that this or
  another rollout has now, is not taken in, and nothing is brought that was revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from sqlalchemy.orm import Session

from controller.domain.states import WorkKind
from controller.store import deployment_changes as changes
from controller.store import free_devices, new_deployments, rollout_work
from controller.store.releases import published
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import RolloutRow
from controller.store.work_tables import RolloutWorkRow

LOST = "not taken in: gone, held out, or in this or another rollout, since the order"


def step(session: Session, row: RolloutRow, part: RolloutWorkRow, *, now_s: float) -> None:
    """Take some devices in.

    Args:
        session: The transaction.
        row: The rollout, locked.
        part: Which devices, and how; none of `ENDING_WORK`.
        now_s: Wall time.
    """
    kind, devices = WorkKind(part.kind), dict(part.devices)
    if kind is WorkKind.LEAVE_OUT:
        new_deployments.leave_out(session, row.id, row.model, devices, now_s=now_s)
    else:
        if kind is WorkKind.REOPEN:
            free = _still(session, row, devices, joins=False)
            changes.reopen(session, row.id, sorted(free))
        else:
            own = {device: digest for device, (_, digest) in devices.items()}
            free = _still(session, row, own, joins=True)
            new_deployments.take_in(
                *(session, row.id, row.model),
                {device: said for device, said in devices.items() if device in free},
                now_s=now_s,
                is_control=kind is WorkKind.HOLD_OUT,
            )
        if lost := [device for device in devices if device not in free]:
            reason = named(lost, LOST)
            log(session, row.id, action="skip", reason=reason, now_s=now_s)
    session.delete(part)


def leave_out(
    session: Session, rollout: str, model: str, unfit: Mapping[str, str], *, now_s: float
) -> None:
    """Record devices that a rollout leaves out because they cannot take its release.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        unfit: Each such device with its reason; none of them takes part yet.
        now_s: Wall time.
    """
    if unfit:
        room = rollout_work.AT_ONCE
        first, rest = dict(islice(unfit.items(), room)), dict(islice(unfit.items(), room, None))
        new_deployments.leave_out(session, rollout, model, first, now_s=now_s)
        rollout_work.save(session, rollout, WorkKind.LEAVE_OUT, rest)
        reason = named(list(unfit), "left out: cannot take the release")
        log(session, rollout, action="skip", reason=reason, now_s=now_s)


def _still(
    session: Session, row: RolloutRow, devices: Mapping[str, str | None], *, joins: bool
) -> set[str]:
    """Return those of some devices that a rollout may still take in."""
    free = free_devices.still_free(session, row.id, row.model, list(devices), joins=joins)
    known = published(session, {devices[device] or row.release for device in free})
    return {device for device in free if (devices[device] or row.release) in known}
