"""Which requests devices are to capture, as the operator set it.

Rules:
- Each change raises the generation of the policies: with it the desired states are found in which
  the choice has to be made again (`controller.store.policy_choices`).
"""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from controller.domain.capture_choice import MAX_CAPTURES
from controller.domain.names import which_there_are
from controller.errors import ConflictError, UnknownCaptureError
from controller.store import policies
from controller.store.capture_tables import CaptureRow
from controller.store.model_tables import DesiredModelRow
from controller.store.policies import Reach


def all_rows(session: Session) -> list[CaptureRow]:
    """Return the captures by model."""
    return list(session.scalars(select(CaptureRow).order_by(CaptureRow.model)))


def get(session: Session, model: str) -> CaptureRow:
    """Return the capture of a model.

    Raises:
        UnknownCaptureError: There is none.
    """
    row = session.get(CaptureRow, model)
    if row is None:
        known = [each.model for each in all_rows(session)]
        raise UnknownCaptureError(
            f"nothing is captured of a model {model[:64]!r}",
            remedy=which_there_are(
                model, known, what="models", none="start with `fleet capture start`"
            ),
        )
    return row


def put(session: Session, row: CaptureRow) -> None:
    """Save a capture in place of the one of that model.

    Args:
        session: The transaction.
        row: The capture, which belongs to no session yet.

    Raises:
        ConflictError: There are too many.
    """
    policies.raise_generation(session)
    count = session.scalar(select(func.count()).select_from(CaptureRow)) or 0
    if count >= MAX_CAPTURES and session.get(CaptureRow, row.model) is None:
        raise ConflictError(
            f"there are captures of {MAX_CAPTURES} models, which is the greatest number",
            remedy="stop one: fleet capture stop MODEL",
        )
    session.merge(row)


def remove(session: Session, model: str) -> None:
    """Remove the capture of a model."""
    policies.raise_generation(session)
    session.execute(delete(CaptureRow).where(CaptureRow.model == model))


def reach(session: Session) -> dict[str, Reach]:
    """Return how many devices have the capture of each model, and how many have accepted it."""
    return policies.reach_by_model(session, DesiredModelRow.capture)
