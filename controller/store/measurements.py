"""Requests to measure on devices, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.domain.measuring import CANCELLED, NO_ANSWER, MeasurementState
from controller.domain.states import DeviceState
from controller.errors import UnknownMeasurementError
from controller.store.database import changed_rows, in_batches
from controller.store.device_tables import DeviceRow
from controller.store.measurement_tables import MeasurementRow
from controller.store.release_tables import ReleaseRow
from controller.store.tables import MAX_DETAIL_CHARS


class Part(NamedTuple):
    """One device's part in a request, and the release that it measures."""

    row: MeasurementRow
    release: ReleaseRow


def busy(session: Session, devices: Sequence[str]) -> dict[str, str]:
    """Return the requests to some devices that are not answered yet: device to identifier."""
    found: dict[str, str] = {}
    for batch in in_batches(devices):
        waiting = select(MeasurementRow.device, MeasurementRow.id).where(
            MeasurementRow.device.in_(batch), MeasurementRow.state == MeasurementState.ASKED
        )
        found.update((device, identifier) for device, identifier in session.execute(waiting))
    return found


def add(
    session: Session,
    identifier: str,
    release: str,
    devices: Sequence[tuple[str, str]],
    *,
    now_s: float,
    limit_s: float,
) -> None:
    """Save a request.

    Args:
        session: The transaction.
        identifier: Of the request.
        release: Digest of what is measured.
        devices: Devices and the names of their profiles.
        now_s: Wall time.
        limit_s: How long an answer is waited for.
    """
    session.add_all(
        MeasurementRow(
            id=identifier,
            device=device,
            release=release,
            profile=profile,
            state=MeasurementState.ASKED,
            reason="",
            figures=None,
            asked_at_s=now_s,
            expires_at_s=now_s + limit_s,
            answered_at_s=None,
        )
        for device, profile in devices
    )


def end(
    session: Session,
    identifier: str,
    device: str,
    state: MeasurementState,
    reason: str,
    figures: dict[str, Any] | None,
    *,
    now_s: float,
) -> bool:
    """Save an answer. It may come after its time.

    Args:
        session: The transaction.
        identifier: Of the request.
        device: Who answered.
        state: What came of it.
        reason: Why nothing was measured, or not all.
        figures: What was measured.
        now_s: Wall time.

    Returns:
        Whether the answer was waited for.
    """
    waits = (MeasurementState.ASKED, MeasurementState.TIMED_OUT)
    changed = changed_rows(
        session,
        update(MeasurementRow)
        .where(
            MeasurementRow.id == identifier,
            MeasurementRow.device == device,
            MeasurementRow.state.in_(waits),
        )
        .values(
            state=state,
            reason=clean(reason, MAX_DETAIL_CHARS),
            figures=figures,
            answered_at_s=now_s,
        ),
    )
    return changed == 1


def expire(session: Session, *, now_s: float) -> int:
    """End the requests whose time is over; return how many."""
    return changed_rows(
        session,
        update(MeasurementRow)
        .where(MeasurementRow.state == MeasurementState.ASKED, MeasurementRow.expires_at_s <= now_s)
        .values(state=MeasurementState.TIMED_OUT, reason=NO_ANSWER, answered_at_s=now_s),
    )


def cancel(session: Session, identifier: str, *, now_s: float) -> int:
    """End the waiting for the answers to a request; return for how many."""
    return changed_rows(
        session,
        update(MeasurementRow)
        .where(MeasurementRow.id == identifier, MeasurementRow.state == MeasurementState.ASKED)
        .values(state=MeasurementState.TIMED_OUT, reason=CANCELLED, answered_at_s=now_s),
    )


def is_any_over(session: Session, *, now_s: float) -> bool:
    """Tell whether a request's time is over, without a lock."""
    found = session.scalar(
        select(MeasurementRow.id)
        .where(MeasurementRow.state == MeasurementState.ASKED, MeasurementRow.expires_at_s <= now_s)
        .limit(1)
    )
    return found is not None


def parts(session: Session, identifier: str) -> list[Part]:
    """Return the parts of a request, by device.

    Raises:
        UnknownMeasurementError: There is none of that name.
    """
    rows = session.execute(
        select(MeasurementRow, ReleaseRow)
        .join(ReleaseRow, ReleaseRow.digest == MeasurementRow.release)
        .where(MeasurementRow.id == identifier)
        .order_by(MeasurementRow.device)
    )
    found = [Part(*row) for row in rows]
    if not found:
        raise UnknownMeasurementError(
            f"there is no measurement {identifier[:64]!r}",
            remedy="`fleet measure list` shows which there are",
        )
    return found


def newest(session: Session, *, limit: int) -> list[str]:
    """Return the identifiers of the newest requests, the newest first."""
    asked = (
        select(MeasurementRow.id, MeasurementRow.asked_at_s)
        .distinct()
        .order_by(MeasurementRow.asked_at_s.desc(), MeasurementRow.id)
        .limit(limit)
    )
    return [identifier for identifier, _ in session.execute(asked)]


def with_figures(session: Session, profile: str, *, limit: int) -> list[Part]:
    """Return the newest answers with figures of devices that are enrolled, since they enrolled.

    Args:
        session: The transaction.
        profile: Only of this kind of device; empty for all.
        limit: The greatest number.

    Returns:
        The newest first.
    """
    statement = (
        select(MeasurementRow, ReleaseRow)
        .join(ReleaseRow, ReleaseRow.digest == MeasurementRow.release)
        .join(DeviceRow, DeviceRow.id == MeasurementRow.device)
        .where(
            MeasurementRow.figures.is_not(None),
            DeviceRow.state == DeviceState.ENROLLED,
            MeasurementRow.answered_at_s >= DeviceRow.enrolled_at_s,
        )
        .order_by(MeasurementRow.answered_at_s.desc())
        .limit(limit)
    )
    if profile:
        statement = statement.where(MeasurementRow.profile == profile)
    return [Part(*row) for row in session.execute(statement)]
