"""Adds deployments to rollouts: rows without objects, because a rollout may have very many."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from controller.domain.deployment_codes import SUPERSEDED
from controller.domain.states import DeploymentState, WorkKind
from controller.errors import UnfitError
from controller.store import deployment_changes, free_devices, rollout_work
from controller.store.deployment_changes import Verdict
from controller.store.tables import MAX_DETAIL_CHARS, Base, DeploymentRow
from telemetry.server.bulk import append

_TABLE = Base.metadata.tables[DeploymentRow.__tablename__]
_UNBEGUN: Mapping[str, object] = {
    **dict.fromkeys(("position", "stage", "done_bytes", "total_bytes"), 0),
    **dict.fromkeys(("is_control", "is_first", "acknowledged"), False),
    **dict.fromkeys(("clock_s", "away_s"), 0.0),
    **dict.fromkeys(("phase", "error_code", "detail"), ""),
}


def take_in_first(
    session: Session,
    rollout: str,
    model: str,
    placed: Mapping[str, int],
    *,
    control: Collection[str],
    releases: Mapping[str, str],
    now_s: float,
) -> list[str]:
    """Take in the first devices of a new rollout, or of an addition, and save what is left to do.

    None is taken in now while devices of ended rollouts of its model are still taken out.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        placed: All that it takes in, with their places in the order of starting.
        control: Those that keep the old release, to compare the others with.
        releases: Device to the release that it is brought to, where that is not the rollout's.
        now_s: Wall time.

    Returns:
        Those that are not taken in: they are gone, or in a rollout, since it was decided.
    """
    others = [device for device in placed if device not in control]
    lost: list[str] = []
    room = rollout_work.AT_ONCE
    if rollout_work.rollouts(session, model, is_ending=True):
        room = 0
    for kind, some in ((WorkKind.TAKE_IN, others), (WorkKind.HOLD_OUT, sorted(control))):
        first, rest = some[:room], some[room:]
        free = free_devices.still_free(session, rollout, model, first, joins=True)
        lost += [device for device in first if device not in free]
        if free:
            take_in(
                *(session, rollout, model),
                {device: placed[device] for device in first if device in free},
                releases=releases,
                now_s=now_s,
                is_control=kind is WorkKind.HOLD_OUT,
            )
        left = {device: (placed[device], releases.get(device)) for device in rest}
        rollout_work.save(session, rollout, kind, left)
    return lost


def take_in(
    session: Session,
    rollout: str,
    model: str,
    placed: Mapping[str, int],
    *,
    releases: Mapping[str, str],
    now_s: float,
    is_control: bool = False,
) -> None:
    """Add devices to a rollout; those that wait for the release of an earlier one no longer do.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        placed: Devices that no other unfinished rollout of the model has, with their places in the
            order of starting.
        releases: Device to the release that it is brought to, where that is not the rollout's.
        now_s: Wall time.
        is_control: Whether they keep the old release, to compare the others with.
    """
    verdict = Verdict(error_code=SUPERSEDED, detail=f"rollout {rollout} took the device")
    deployment_changes.end_waiting(session, model, list(placed), verdict, now_s=now_s, but=rollout)
    same = {
        "rollout": rollout,
        "model": model,
        "state": DeploymentState.PENDING,
        "is_control": is_control,
    }
    rows = ((name, place, releases.get(name)) for name, place in placed.items())
    _insert(session, same, ("device", "position", "release"), rows)


def leave_out(
    session: Session, rollout: str, model: str, unfit: Mapping[str, str], *, now_s: float
) -> None:
    """Record devices that take no part in a rollout, and why, so that they do not join it later.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        unfit: Each device with the reason why it cannot take the release.
        now_s: Wall time.
    """
    same = {
        "rollout": rollout,
        "model": model,
        "state": DeploymentState.CANCELLED,
        "error_code": UnfitError.code,
        "finished_at_s": now_s,
    }
    rows = ((device, reason[:MAX_DETAIL_CHARS]) for device, reason in unfit.items())
    _insert(session, same, ("device", "detail"), rows)


def _insert(
    session: Session,
    same: Mapping[str, object],
    columns: Sequence[str],
    rows: Iterable[tuple[object, ...]],
) -> None:
    """Add deployments that have not begun.

    Args:
        session: The transaction.
        same: What is the same in all of them.
        columns: What is not.
        rows: The values of those columns.
    """
    names = [column.name for column in _TABLE.columns]
    usual = [same.get(name, _UNBEGUN.get(name)) for name in names]
    places = [names.index(column) for column in columns]
    made = []
    for values in rows:
        row = usual.copy()
        for place, value in zip(places, values, strict=True):
            row[place] = value
        made.append(tuple(row))
    session.flush()
    append(session.connection(), _TABLE, made)
