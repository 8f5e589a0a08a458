"""Adds deployments to rollouts: rows without objects, because a rollout may have very many."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy.orm import Session

from controller.domain.deployment_codes import SUPERSEDED
from controller.domain.states import DeploymentState, WorkKind
from controller.errors import UnfitError
from controller.store import deployment_changes, free_devices, rollout_work
from controller.store.deployment_changes import Verdict
from controller.store.rollout_tables import DeploymentRow
from controller.store.rollout_work import Part
from controller.store.tables import MAX_DETAIL_CHARS, Base
from telemetry.server.bulk import append

_TABLE = Base.metadata.tables[DeploymentRow.__tablename__]
_UNBEGUN: Mapping[str, object] = {
    **dict.fromkeys(("position", "stage", "done_bytes", "total_bytes"), 0),
    **dict.fromkeys(("is_control", "is_first", "acknowledged"), False),
    **dict.fromkeys(("clock_s", "away_s"), 0.0),
    **dict.fromkeys(("phase", "error_code", "detail"), ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What a rollout takes in, made before the transaction that saves it, as others await that."""

    placed: Mapping[str, int]
    """Its devices with their places in the order of starting."""

    parts: Sequence[Part]


def intake(
    placed: Mapping[str, int],
    *,
    control: Collection[str] = (),
    releases: Mapping[str, str] = MappingProxyType({}),
) -> Intake:
    """Cut what a rollout takes in into parts.

    Args:
        placed: Its devices with their places in the order of starting.
        control: Those that keep the old release, to compare the others with.
        releases: Device to the release that it is brought to, where that is not the rollout's.
    """
    said = {device: (place, releases.get(device)) for device, place in placed.items()}
    held = {device: said.pop(device) for device in sorted(control)}
    parts = rollout_work.cut(WorkKind.TAKE_IN, said) + rollout_work.cut(WorkKind.HOLD_OUT, held)
    return Intake(placed=placed, parts=parts)


def take_in_first(
    session: Session, rollout: str, model: str, found: Intake, *, now_s: float
) -> list[str]:
    """Take in the first devices of a new rollout, or of an addition, and save what is left to do.

    None is taken in now while devices of ended rollouts of its model are still taken out.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        found: All that it takes in.
        now_s: Wall time.

    Returns:
        Those that are not taken in: they are gone, or in a rollout, since it was decided.
    """
    waits = bool(rollout_work.rollouts(session, model, is_ending=True))
    begun: set[WorkKind] = set()
    left: list[Part] = []
    lost: list[str] = []
    for part in found.parts:
        if waits or part.kind in begun:
            left.append(part)
            continue
        begun.add(part.kind)
        free = free_devices.still_free(session, rollout, model, list(part.devices), joins=True)
        lost += [device for device in part.devices if device not in free]
        take_in(
            *(session, rollout, model),
            {device: said for device, said in part.devices.items() if device in free},
            now_s=now_s,
            is_control=part.kind is WorkKind.HOLD_OUT,
        )
    rollout_work.save_parts(session, rollout, left)
    return lost


def take_in(
    session: Session,
    rollout: str,
    model: str,
    devices: Mapping[str, tuple[int, str | None]],
    *,
    now_s: float,
    is_control: bool = False,
) -> None:
    """Add devices to a rollout; those that wait for the release of an earlier one no longer do.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        devices: Devices that no other unfinished rollout of the model has, with their places in the
            order of starting, and the release that each is brought to, if that is not the
            rollout's.
        now_s: Wall time.
        is_control: Whether they keep the old release, to compare the others with.
    """
    if not devices:
        return
    verdict = Verdict(error_code=SUPERSEDED, detail=f"rollout {rollout} took the device")
    deployment_changes.end_waiting(session, model, list(devices), verdict, now_s=now_s, but=rollout)
    same = {
        "rollout": rollout,
        "model": model,
        "state": DeploymentState.PENDING,
        "is_control": is_control,
    }
    rows = ((device, *said) for device, said in devices.items())
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
