"""Lists of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.paging import PageRequest
from controller.domain.states import RolloutState
from controller.store import releases
from controller.store.paging import Column, known, paged
from controller.store.rollout_tables import RolloutRow

_COLUMNS: Final[Mapping[str, Column]] = {
    "created": RolloutRow.created_at_s,
    "finished": known(RolloutRow.finished_at_s),
    "id": RolloutRow.id,
    "model": RolloutRow.model,
    "state": RolloutRow.state,
}


def listed(
    session: Session, page: PageRequest, *, state: RolloutState | None, model: str, release: str
) -> list[RolloutRow]:
    """Return a part of the rollouts, and one more (`controller.store.paging`).

    Args:
        session: The transaction.
        page: Which part.
        state: Only those in this state; None for all.
        model: Only those of this model; empty for all.
        release: Only those of this release, as `name:version` or digest; empty for all.

    Raises:
        UnknownReleaseError: There is no such release.
    """
    whole = select(RolloutRow)
    if state is not None:
        whole = whole.where(RolloutRow.state == state)
    if model:
        whole = whole.where(RolloutRow.model == model)
    if release:
        whole = whole.where(RolloutRow.release == releases.get(session, release).digest)
    return list(session.scalars(paged(whole, page, _COLUMNS, RolloutRow.id)))
