"""Devices and their labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from controller.domain.device_text import clean
from controller.domain.selectors import Selector
from controller.domain.states import ORDERED_DEPLOYMENTS, DeviceState
from controller.errors import IllegalTransitionError, UnknownDeviceError
from controller.store.database import changed_rows, in_batches
from controller.store.device_tables import DeviceLabelRow, DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.penalty_tables import DevicePenaltyRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.selector_conditions import conditions
from controller.store.tables import MAX_CODE_CHARS
from wire.codec import to_builtins
from wire.desired import ONE_RELEASE
from wire.enrolling import EnrolRequest
from wire.profile import DeviceProfile

_GROUPING: Mapping[str, InstrumentedAttribute[str]] = {
    "id": DeviceRow.id,
    "profile": DeviceRow.profile_name,
    "arch": DeviceRow.architecture,
    "agent_version": DeviceRow.agent_version,
}

SEEN_AHEAD_S = 60.0
"""A device that was seen by so much later than now was seen before the clock was set back; by less,
while a statement waited."""

_WITHOUT_KEY: Final = {"key_share": True}
"""How devices are locked: rows that refer to one may be written meanwhile. Otherwise a rollout that
holds the desired state of a device would wait here, and who holds this for that."""

KNOWN = "`fleet device list` shows the devices that are"
"""The remedy where no device has a name."""


def find(session: Session, device: str, *, lock: bool = False) -> DeviceRow | None:
    """Return a device, or None; `lock` keeps other transactions from changing it."""
    return session.get(DeviceRow, device, with_for_update=_WITHOUT_KEY if lock else None)


def lock_all(session: Session, devices: Sequence[str]) -> list[str]:
    """Keep other transactions from changing devices; every writer of several locks them so first.

    Args:
        session: The transaction.
        devices: Which devices, sorted, so that no two transactions wait for each other; at most as
            many as one statement may name.

    Returns:
        Those that there are, sorted.
    """
    rows = select(DeviceRow.id).where(DeviceRow.id.in_(devices)).order_by(DeviceRow.id)
    return list(session.scalars(rows.with_for_update(key_share=True)))


def get(session: Session, device: str, *, lock: bool = False) -> DeviceRow:
    """Return a device.

    Args:
        session: The transaction.
        device: Its identifier.
        lock: Keep other transactions from changing it.

    Returns:
        The row.

    Raises:
        UnknownDeviceError: There is none of that name.
    """
    row = find(session, device, lock=lock)
    if row is None:
        raise UnknownDeviceError(f"no device {device[:64]!r} is enrolled", remedy=KNOWN)
    return row


def is_any(session: Session, selector: Selector) -> bool:
    """Tell whether any device that is not decommissioned matches a selector."""
    statement = (
        select(DeviceRow.id)
        .where(DeviceRow.state != DeviceState.DECOMMISSIONED, *conditions(session, selector))
        .limit(1)
    )
    return session.scalar(statement) is not None


def named_model() -> ColumnElement[bool]:
    """Return the condition that a `DesiredModelRow` is of a device and named to it."""
    return and_(DesiredModelRow.device == DeviceRow.id, DesiredModelRow.removed.is_(False))


def told_of_model() -> ColumnElement[bool]:
    """Return the condition that a `DeviceModelRow` and a `DesiredModelRow` are of one model."""
    return and_(
        DeviceModelRow.device == DesiredModelRow.device,
        DeviceModelRow.model == DesiredModelRow.model,
    )


def differs() -> ColumnElement[bool]:
    """Return the condition that a device runs another release of a model than it should.

    It is on `DeviceRow`, `DesiredModelRow` and `DeviceModelRow`. A device that a rollout has told
    to install, or tells when it returns, has not drifted yet. Neither has one that should have no
    release: it keeps what it runs.
    """
    part = aliased(DeploymentRow)  # a statement may join the deployments, too
    at_work = exists().where(
        part.device == DesiredModelRow.device,
        part.model == DesiredModelRow.model,
        part.state.in_(ORDERED_DEPLOYMENTS),
    )
    return and_(
        DeviceRow.state == DeviceState.ENROLLED,
        DesiredModelRow.release.is_not(None),
        DeviceModelRow.release.is_distinct_from(DesiredModelRow.release),
        ~at_work,
    )


def drifted() -> ColumnElement[bool]:
    """Return the condition, on `DeviceRow`, that a device has drifted with any model."""
    return (
        select(DesiredModelRow.model)
        .outerjoin(DeviceModelRow, told_of_model())
        .where(named_model(), differs())
        .correlate(DeviceRow)
        .exists()
    )


def chosen(session: Session, selector: Selector) -> frozenset[str]:
    """Return all devices that match a selector, whatever their state."""
    statement = select(DeviceRow.id).where(*conditions(session, selector))
    session.flush()
    return frozenset(session.connection().scalars(statement).all())  # no objects: half the time


def presence(session: Session, selector: Selector) -> dict[str, bool]:
    """Return the enrolled devices that match a selector, and whether each is online."""
    statement = (
        select(DeviceRow.id, DeviceRow.online)
        .where(DeviceRow.state == DeviceState.ENROLLED, *conditions(session, selector))
        .order_by(DeviceRow.id)
    )
    return {row.id: row.online for row in session.execute(statement)}


def heard_at_s(session: Session, selector: Selector) -> dict[str, tuple[float, float]]:
    """Return when each enrolled device that matches a selector enrolled, and was heard last.

    A device that was let in again counts as heard then: before, the broker refused it.
    """
    last_s = func.coalesce(
        DeviceRow.expected_from_s, DeviceRow.last_seen_at_s, DeviceRow.enrolled_at_s
    )
    statement = select(DeviceRow.id, DeviceRow.enrolled_at_s, last_s).where(
        DeviceRow.state == DeviceState.ENROLLED, *conditions(session, selector)
    )
    return {device: (first_s, at_s) for device, first_s, at_s in session.execute(statement)}


def count_by_profile(session: Session) -> dict[tuple[str, bool], int]:
    """Return how many enrolled devices there are, by the name of their profile and by presence."""
    statement = (
        select(DeviceRow.profile_name, DeviceRow.online, func.count())
        .where(DeviceRow.state == DeviceState.ENROLLED)
        .group_by(DeviceRow.profile_name, DeviceRow.online)
    )
    return {(profile, online): count for profile, online, count in session.execute(statement)}


def values_by_name(session: Session, names: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the values of labels, and of what devices have of their own, for all devices.

    Args:
        session: The transaction.
        names: Which; others are left out, and so are those that no device has.

    Returns:
        Name to device to value.
    """
    found: dict[str, dict[str, str]] = {}
    for name in _GROUPING.keys() & set(names):
        rows = session.execute(select(DeviceRow.id, _GROUPING[name]))
        found[name] = {device: value for device, value in rows}  # noqa: C416 - rows are no pairs
    labels = select(DeviceLabelRow.key, DeviceLabelRow.device, DeviceLabelRow.value)
    for key, device, value in session.execute(labels.where(DeviceLabelRow.key.in_(names))):
        if key not in _GROUPING:
            found.setdefault(key, {})[device] = value
    return found


def names_to_group_by(session: Session) -> list[str]:
    """Return the labels that devices have, and what all devices have of their own, by name."""
    labels = session.scalars(select(DeviceLabelRow.key).distinct())
    return sorted({*labels, *_GROUPING} - {"id"})


def enrol(
    session: Session,
    row: DeviceRow | None,
    request: EnrolRequest,
    labels: Mapping[str, str],
    *,
    now_s: float,
) -> None:
    """Enrol a device, with nothing of its earlier state.

    Args:
        session: The transaction.
        row: The locked row of a device of that name that may enrol again; None for a new name.
        request: The device's request, already checked.
        labels: Its labels, already checked.
        now_s: Wall time.
    """
    if row is None:
        row = DeviceRow(id=request.device, labels=[])
        session.add(row)
    else:
        for table in (DeviceModelRow, DevicePenaltyRow):
            session.execute(delete(table).where(table.device == request.device))
    row.state = DeviceState.ENROLLED
    row.may_enrol_again = False
    row.public_key = request.public_key
    row.agent_version = clean(request.agent_version, MAX_CODE_CHARS)
    row.boot_id = ""
    row.greeted = False
    row.lent = False
    row.runtimes = None
    row.peer_url = None
    row.trust_file = None
    row.report_sequence = 0
    row.online = False
    row.desired_form = ONE_RELEASE
    row.reported_revision = 0
    row.last_error = ""
    row.enrolled_at_s = now_s
    row.last_seen_at_s = None
    row.expected_from_s = None
    set_profile(row, request.profile)
    set_labels(session, row, labels)


def set_labels(session: Session, row: DeviceRow, labels: Mapping[str, str]) -> None:
    """Give a device exactly these labels."""
    if row.labels:
        row.labels.clear()
        session.flush()
    row.labels.extend(DeviceLabelRow(key=key, value=value) for key, value in labels.items())


def set_profile(row: DeviceRow, profile: DeviceProfile) -> None:
    """Record the profile that a device reports."""
    row.profile_name = profile.name
    row.architecture = profile.architecture
    row.profile = to_builtins(profile)


def readmit(row: DeviceRow, *, allowed: bool, key_is_gone: bool = False) -> None:
    """Let a decommissioned device be enrolled again, or block its identifier.

    Args:
        row: The device.
        allowed: Whether it may.
        key_is_gone: Whether nobody can use the certificate that it may still hold.

    Raises:
        IllegalTransitionError: It is not decommissioned.
    """
    if row.state != DeviceState.DECOMMISSIONED:
        raise IllegalTransitionError(
            f"device {row.id} is {row.state}, not decommissioned",
            remedy="a device that is not decommissioned enrols again with its own key",
        )
    row.may_enrol_again = allowed
    if key_is_gone:
        row.certificate_ends_at_s = None


def move(session: Session, device: str, target: DeviceState, *, now_s: float) -> None:
    """Change the state of a device by the operator's order; the broker disconnects one shut out.

    Args:
        session: The transaction.
        device: Its identifier.
        target: The new state.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: It was decommissioned: only an enrolment brings it back.
    """
    allowed = (DeviceState.ENROLLED, DeviceState.QUARANTINED)
    values: dict[str, Any] = {"state": target}
    if target is DeviceState.ENROLLED:
        is_back = DeviceRow.state == DeviceState.QUARANTINED
        values["expected_from_s"] = case((is_back, now_s), else_=DeviceRow.expected_from_s)
    else:
        values["online"] = False
    changed = changed_rows(
        session,
        update(DeviceRow)
        .where(DeviceRow.id == device, DeviceRow.state.in_(allowed))
        .values(values),
    )
    if changed != 1:
        raise IllegalTransitionError(
            f"device {device} is decommissioned and cannot become {target}",
            remedy="`fleet device readmit` lets it enrol again",
        )


def online(session: Session) -> list[str]:
    """Return the enrolled devices that are online, sorted."""
    statement = (
        select(DeviceRow.id)
        .where(DeviceRow.online.is_(True), DeviceRow.state == DeviceState.ENROLLED)
        .order_by(DeviceRow.id)
    )
    return list(session.scalars(statement))


def count_trust_files(session: Session) -> dict[bool | None, int]:
    """Return how many devices of the fleet trust keys in a trust file, and how many metadata.

    Returns:
        By `DeviceRow.trust_file`; None for those that have not said it.
    """
    statement = (
        select(DeviceRow.trust_file, func.count().label("devices"))
        .where(DeviceRow.state != DeviceState.DECOMMISSIONED)
        .group_by(DeviceRow.trust_file)
    )
    return {row.trust_file: row.devices for row in session.execute(statement)}


def count_silent(session: Session, *, since_s: float, now_s: float) -> int:
    """Return how many devices are recorded as online but have sent nothing since a time."""
    statement = select(func.count()).select_from(DeviceRow).where(_is_silent(since_s, now_s))
    return session.scalar(statement) or 0


def mark_silent(session: Session, *, since_s: float, now_s: float) -> int:
    """Record devices as offline that have sent nothing since a time: a last will may be lost.

    Args:
        session: The transaction.
        since_s: The time.
        now_s: Wall time. What was heard later was heard before the clock was set back.

    Returns:
        How many devices.
    """
    silent = _is_silent(since_s, now_s)
    found = session.scalars(select(DeviceRow.id).where(silent)).all()
    count = 0
    for batch in in_batches(sorted(found)):
        lock_all(session, batch)
        is_one = DeviceRow.id.in_(batch)
        count += changed_rows(session, update(DeviceRow).where(is_one, silent).values(online=False))
    return count


def _is_silent(since_s: float, now_s: float) -> ColumnElement[bool]:
    seen_at_s, online = DeviceRow.last_seen_at_s, DeviceRow.online.is_(True)
    # Each part finds few in the index; together they would read all that are online.
    return or_(and_(online, seen_at_s < since_s), and_(online, seen_at_s > now_s + SEEN_AHEAD_S))
