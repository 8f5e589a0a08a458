"""Devices that enrol while a rollout goes on, and join it in its last stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.orm import Session

from controller.domain.stages import selectors
from controller.domain.starting_order import StartingOrder, places
from controller.store import free_devices, stages
from controller.store.database import BATCH, in_batches
from controller.store.groups import read_selector
from controller.store.new_deployments import take_in
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import RolloutRow
from controller.store.taking_in import leave_out

MAX_NEWCOMERS = 500
"""The greatest number of devices that join in one tick."""


def find(session: Session, row: RolloutRow, *, now_s: float) -> list[str]:
    """Return devices that enrolled since a rollout began and may join it.

    They join when they have greeted: before that nobody knows which runtimes they have.

    Args:
        session: The transaction.
        row: The rollout.
        now_s: Wall time.

    Raises:
        SelectorError: A group in the selector is gone.
    """
    selector = read_selector(session, row.selector, now_s=now_s)
    return free_devices.newcomers(
        session, row.id, row.model, selector, limit=MAX_NEWCOMERS, greeted=True
    )


def join(
    session: Session,
    row: RolloutRow,
    found: Sequence[str],
    unfit: Callable[[Sequence[str]], Mapping[str, str]],
    *,
    now_s: float,
) -> None:
    """Let devices that enrolled since the beginning take part in the last stage of a rollout.

    Args:
        session: The transaction.
        row: The rollout, locked.
        found: Its newcomers, which another transaction may have found.
        unfit: Returns which devices cannot take the release, and why; they are left out.
        now_s: Wall time.
    """
    selector = read_selector(session, row.selector, now_s=now_s)
    found = [
        device
        for batch in in_batches(found)
        for device in free_devices.newcomers(
            session, row.id, row.model, selector, limit=BATCH, greeted=True, among=batch
        )
    ]
    if not found:
        return
    cannot = unfit(found)
    leave_out(session, row.id, row.model, cannot, now_s=now_s)
    if found := [device for device in found if device not in cannot]:
        # They come after all whom a stage chooses.
        order = StartingOrder(last=len(selectors(stages.of_rollout(session, row.id))))
        placed = places(order, row.id, found)
        joining = {device: (place, None) for device, place in placed.items()}
        take_in(session, row.id, row.model, joining, now_s=now_s)
        log(session, row.id, action="join", reason=named(found, "joined late"), now_s=now_s)
