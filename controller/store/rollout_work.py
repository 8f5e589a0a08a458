"""What is left to do of orders that take several transactions, part by part.

An order decides outside of any transaction that writes what becomes of which devices. A short
transaction then changes the rollout and saves the decision here; each part of it is carried out in
a transaction of its own, which also removes its row. So a controller that is killed between two
parts goes on with the next one, and nobody waits long for the write lock.

This module keeps the parts; `controller.store.taking_in` and `controller.store.taking_out` carry
them out, and `controller.services.rollout_work` goes on until none is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec
from sqlalchemy import case, delete, exists, func, insert, select
from sqlalchemy.orm import Session

from controller.domain.states import ENDING_WORK, WorkKind
from controller.store.database import JsonText
from controller.store.deployment_changes import Verdict
from controller.store.rollout_tables import RolloutRow
from controller.store.work_tables import RolloutWorkRow

AT_ONCE: Final = 500
"""The greatest number of devices that one transaction takes in, reopens or cancels."""

NO_VERDICT: Final = Verdict(error_code="", detail="")
LOCK: Final = 0x65666C_20
"""First number of the advisory locks of PostgreSQL that stand for models."""

_IS_ENDING: Final = RolloutWorkRow.kind.in_(ENDING_WORK)
LEAVING: Final = select(RolloutWorkRow.rollout).where(_IS_ENDING)
"""The rollouts whose devices are still taken out."""

_ORDER: Final = case((_IS_ENDING, 0), else_=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is done with some devices in one transaction."""

    kind: WorkKind
    devices: Mapping[str, Any]
    """Each with what the table says."""

    text: JsonText
    """The same as it is saved."""


def cut(kind: WorkKind, devices: Mapping[str, Any]) -> list[Part]:
    """Cut what is to be done with devices into parts.

    Args:
        kind: What.
        devices: Each with what the table says.
    """
    rest = iter(devices.items())
    parts = []
    while part := dict(islice(rest, AT_ONCE)):
        text = JsonText(msgspec.json.encode(part), "utf-8")
        parts.append(Part(kind=kind, devices=part, text=text))
    return parts


def states_of(session: Session, model: str) -> dict[str, str]:
    """Return all rollouts of a model with their states."""
    statement = select(RolloutRow.id, RolloutRow.state).where(RolloutRow.model == model)
    return dict(session.execute(statement).all())


def lock_model(session: Session, model: str) -> None:
    """Keep others from making rollouts of a model until this transaction ends."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(LOCK, func.hashtext(model))))


def save(
    session: Session,
    rollout: str,
    kind: WorkKind,
    devices: Mapping[str, Any],
    verdict: Verdict = NO_VERDICT,
) -> None:
    """Save what is to be done with devices.

    Args:
        session: The transaction.
        rollout: The rollout.
        kind: What.
        devices: Each with what the table says.
        verdict: Why, if they are taken out.
    """
    save_parts(session, rollout, cut(kind, devices), verdict)


def save_parts(
    session: Session, rollout: str, parts: Sequence[Part], verdict: Verdict = NO_VERDICT
) -> None:
    """Save what is to be done with devices, cut into parts before.

    Args:
        session: The transaction.
        rollout: The rollout.
        parts: In the order in which they are carried out.
        verdict: Why, if they are taken out.
    """
    rows = [
        {
            "rollout": rollout,
            "kind": part.kind,
            "count": len(part.devices),
            "devices": part.text,
            "error_code": verdict.error_code,
            "detail": verdict.detail,
        }
        for part in parts
    ]
    if rows:
        session.execute(insert(RolloutWorkRow), rows)


def save_ending(session: Session, rollout: str, kind: WorkKind, verdict: Verdict) -> RolloutWorkRow:
    """Save that devices of a rollout that has ended are to be taken out.

    Nobody is taken in any more, but those that were still to leave it, or to be taken out after an
    earlier end, are.

    Args:
        session: The transaction.
        rollout: The rollout.
        kind: What, one of `ENDING_WORK`.
        verdict: Why.

    Returns:
        What is left to do, in one part.
    """
    session.execute(delete(RolloutWorkRow).where(RolloutWorkRow.rollout == rollout, ~_IS_ENDING))
    part = RolloutWorkRow(
        rollout=rollout,
        kind=kind,
        count=0,
        devices={},
        error_code=verdict.error_code,
        detail=verdict.detail,
    )
    session.add(part)
    session.flush()
    return part


def is_left(session: Session, rollout: str, *kinds: WorkKind) -> bool:
    """Tell whether anything, or anything of some kinds, is left to do with devices of a rollout."""
    wanted = [RolloutWorkRow.rollout == rollout]
    if kinds:
        wanted.append(RolloutWorkRow.kind.in_(kinds))
    return bool(session.scalar(select(exists().where(*wanted))))


def left(session: Session, rollout: str) -> int:
    """Return how many devices of a rollout are still to be taken in or reopened."""
    mine = RolloutWorkRow.rollout == rollout, ~_IS_ENDING
    statement = select(func.sum(RolloutWorkRow.count)).where(*mine)
    return session.scalar(statement) or 0


def rollouts(
    session: Session, model: str | None = None, *, is_ending: bool | None = None
) -> list[str]:
    """Return the rollouts with which something is left to do, in the order in which it is done.

    Args:
        session: The transaction.
        model: Only those of this one.
        is_ending: Only with the work that takes devices out, or only with the other; None for all.
    """
    statement = (
        select(RolloutWorkRow.rollout)
        .join(RolloutRow, RolloutRow.id == RolloutWorkRow.rollout)
        .group_by(RolloutWorkRow.rollout)
        .order_by(func.min(_ORDER), func.min(RolloutWorkRow.id))
    )
    if model is not None:
        statement = statement.where(RolloutRow.model == model)
    if is_ending is not None:
        statement = statement.where(_IS_ENDING if is_ending else ~_IS_ENDING)
    return list(session.scalars(statement))


def making(session: Session, model: str, *, but: str = "") -> list[str]:
    """Return the rollouts of a model that take devices in, without one of them."""
    return [name for name in rollouts(session, model, is_ending=False) if name != but]


def next_part(session: Session, rollout: str) -> RolloutWorkRow | None:
    """Return what is done next with devices of a rollout."""
    return session.scalar(
        select(RolloutWorkRow)
        .where(RolloutWorkRow.rollout == rollout)
        .order_by(_ORDER, RolloutWorkRow.id)
        .limit(1)
    )
