"""Adds deployments to rollouts: rows without objects, because a rollout may have very many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import update
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState
from controller.errors import UnfitError
from controller.store import deployments
from controller.store.database import in_batches
from controller.store.tables import MAX_DETAIL_CHARS, Base, DeploymentRow
from telemetry.server.bulk import append

_TABLE = Base.metadata.tables[DeploymentRow.__tablename__]
_UNBEGUN: Mapping[str, object] = {
    **dict.fromkeys(("position", "stage", "done_bytes", "total_bytes"), 0),
    **dict.fromkeys(("is_control", "is_first", "acknowledged"), False),
    **dict.fromkeys(("clock_s", "away_s"), 0.0),
    **dict.fromkeys(("phase", "error_code", "detail"), ""),
}


def add(
    session: Session,
    rollout: str,
    model: str,
    places: Iterable[tuple[str, int]],
    releases: Mapping[str, str],
) -> None:
    """Add devices to a rollout.

    Args:
        session: The transaction.
        rollout: The rollout.
        model: Its model.
        places: Each device with its place in the order of starting.
        releases: Device to the release that it is brought to, where that is not the rollout's.
    """
    same = {"rollout": rollout, "model": model, "state": DeploymentState.PENDING}
    rows = ((device, position, releases.get(device)) for device, position in places)
    _insert(session, same, ("device", "position", "release"), rows)


def hold_out(session: Session, rollout: str, devices: Sequence[str]) -> None:
    """Let devices of a new rollout keep the old release, to compare the others with."""
    for batch in in_batches(devices):
        session.execute(
            update(DeploymentRow)
            .where(*deployments.of(rollout, batch))
            .values(is_control=True)
            .execution_options(synchronize_session=False)
        )


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
