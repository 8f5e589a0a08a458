"""Devices and their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, ScalarSelect, and_, exists, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, selectinload

from controller.domain.device_text import clean
from controller.domain.selectors import OWN_KEYS, Selector, Term
from controller.domain.states import ORDERED_DEPLOYMENTS, DeviceState
from controller.errors import IllegalTransitionError, UnknownDeviceError
from controller.store.database import changed_rows
from controller.store.tables import (
    MAX_CODE_CHARS,
    DeploymentRow,
    DesiredStateRow,
    DeviceLabelRow,
    DeviceRow,
    ReleaseRow,
)
from wire.codec import to_builtins
from wire.messages import EnrolRequest
from wire.profile import DeviceProfile

_OWN: Mapping[str, InstrumentedAttribute[str]] = {
    "id": DeviceRow.id,
    "profile": DeviceRow.profile_name,
    "arch": DeviceRow.architecture,
}


_KNOWN = "`fleet device list` shows the devices that are"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A device with what it should run."""

    row: DeviceRow
    revision: int
    policy_generation: int
    """Generation of the policies from which its desired state's policy was chosen."""

    desired: ReleaseRow | None
    reported: ReleaseRow | None
    waits_for: str
    """What the install of its rollout waits for, in its own words; empty if for nothing."""

    drifted: bool
    """Whether it runs another release than it should, and no rollout is bringing that one."""

    @property
    def values(self) -> dict[str, str]:
        """The values that selectors are matched with."""
        labels = {label.key: label.value for label in self.row.labels}
        return labels | _own_values(self.row.id, self.row.profile_name, self.row.architecture)


def find(session: Session, device: str, *, lock: bool = False) -> DeviceRow | None:
    """Return a device, or None; `lock` keeps other transactions from changing it."""
    return session.get(DeviceRow, device, with_for_update=lock or None)


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
        raise UnknownDeviceError(f"no device {device[:64]!r} is enrolled", remedy=_KNOWN)
    return row


def selected(selector: Selector) -> list[ColumnElement[bool]]:
    """Return a selector as conditions on `DeviceRow`."""
    return [_condition(term) for term in selector.terms]


def drifted() -> ColumnElement[bool]:
    """Return the condition that a device runs another release than it should.

    It is on `DeviceRow` and `DesiredStateRow`. A device that a rollout has told to install, or
    tells when it returns, has not drifted yet. Neither has one that should have no release: it
    keeps what it runs.
    """
    part = aliased(DeploymentRow)  # a statement may join the deployments, too
    at_work = exists().where(part.device == DeviceRow.id, part.state.in_(ORDERED_DEPLOYMENTS))
    return and_(
        DeviceRow.state == DeviceState.ENROLLED,
        DesiredStateRow.release.is_not(None),
        DeviceRow.reported_release.is_distinct_from(DesiredStateRow.release),
        ~at_work,
    )


def record(session: Session, device: str) -> DeviceRecord:
    """Return a device with what it should run and what it runs.

    Args:
        session: The transaction.
        device: Its identifier.

    Returns:
        The device.

    Raises:
        UnknownDeviceError: No device has that identifier.
    """
    found = _records(session, [DeviceRow.id == device], limit=1)
    if not found:
        raise UnknownDeviceError(f"no device {device[:64]!r} is enrolled", remedy=_KNOWN)
    return found[0]


def records(
    session: Session,
    selector: Selector,
    *,
    after: str = "",
    limit: int,
    only_drifted: bool = False,
) -> list[DeviceRecord]:
    """Return the devices that match a selector, by identifier.

    Args:
        session: The transaction.
        selector: Which devices.
        after: Begin after this identifier.
        limit: The greatest number.
        only_drifted: Leave out the devices that run what they should.

    Returns:
        The devices with what they should run and what they run.
    """
    conditions = [DeviceRow.id > after, *selected(selector)]
    if only_drifted:
        conditions.append(drifted())
    return _records(session, conditions, limit=limit)


def _records(
    session: Session, conditions: Sequence[ColumnElement[bool]], *, limit: int
) -> list[DeviceRecord]:
    desired, reported = (ReleaseRow.__table__.alias(name) for name in ("desired", "reported"))
    rows = session.execute(
        select(
            DeviceRow,
            DesiredStateRow.revision,
            DesiredStateRow.policy_generation,
            drifted(),
            _waits_for(),
            desired.c.digest,
            reported.c.digest,
        )
        .options(selectinload(DeviceRow.labels))
        .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .outerjoin(desired, desired.c.digest == DesiredStateRow.release)
        .outerjoin(reported, reported.c.digest == DeviceRow.reported_release)
        .where(*conditions)
        .order_by(DeviceRow.id)
        .limit(limit)
    ).all()
    digests = {digest for row in rows for digest in row[-2:] if digest is not None}
    releases = _releases_by_digest(session, digests)
    return [
        DeviceRecord(
            row=device,
            revision=revision or 0,
            policy_generation=generation or 0,
            desired=releases.get(wanted or ""),
            reported=releases.get(active or ""),
            drifted=bool(has_drifted),
            waits_for=waits_for or "",
        )
        for device, revision, generation, has_drifted, waits_for, wanted, active in rows
    ]


def _waits_for() -> ScalarSelect[str]:
    """Return what a device said last of an install that goes on: a device has one at most."""
    part = aliased(DeploymentRow)
    return (
        select(part.detail)
        .where(part.device == DeviceRow.id, part.state.in_(ORDERED_DEPLOYMENTS))
        .limit(1)
        .scalar_subquery()
    )


def _own_values(device: str, profile: str, architecture: str) -> dict[str, str]:
    """Return a device's own data under `selectors.OWN_KEYS`."""
    return dict(zip(OWN_KEYS, (device, profile, architecture), strict=True))


def values_of(session: Session, devices: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the values that selectors are matched with: the devices' labels and their own data.

    Args:
        session: The transaction.
        devices: Which devices; at most as many as one statement may name.

    Returns:
        Device to key to value.
    """
    own = session.execute(
        select(DeviceRow.id, DeviceRow.profile_name, DeviceRow.architecture).where(
            DeviceRow.id.in_(devices)
        )
    )
    found = {row[0]: _own_values(*row) for row in own}
    labels = session.execute(
        select(DeviceLabelRow.device, DeviceLabelRow.key, DeviceLabelRow.value).where(
            DeviceLabelRow.device.in_(devices)
        )
    )
    for device, key, value in labels:
        found[device].setdefault(key, value)
    return found


def _releases_by_digest(session: Session, digests: Iterable[str]) -> dict[str, ReleaseRow]:
    """Return the known releases among some digests."""
    wanted = sorted(set(digests))
    if not wanted:
        return {}
    rows = session.scalars(select(ReleaseRow).where(ReleaseRow.digest.in_(wanted)))
    return {row.digest: row for row in rows}


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
    row.state = DeviceState.ENROLLED
    row.may_enrol_again = False
    row.public_key = request.public_key
    row.agent_version = clean(request.agent_version, MAX_CODE_CHARS)
    row.boot_id = ""
    row.greeted = False
    row.lent = False
    row.runtimes = None
    row.peer_url = None
    row.report_sequence = 0
    row.online = False
    row.reported_revision = 0
    row.reported_release = None
    row.variant = None
    row.phase = ""
    row.last_error = ""
    row.enrolled_at_s = now_s
    row.last_seen_at_s = None
    set_profile(row, request.profile)
    set_labels(session, row, labels)


def set_labels(session: Session, row: DeviceRow, labels: Mapping[str, str]) -> None:
    """Give a device exactly these labels."""
    row.labels.clear()
    session.flush()
    row.labels.extend(DeviceLabelRow(key=key, value=value) for key, value in labels.items())


def set_profile(row: DeviceRow, profile: DeviceProfile) -> None:
    """Record the profile that a device reports."""
    row.profile_name = profile.name
    row.architecture = profile.architecture
    row.profile = to_builtins(profile)


def readmit(row: DeviceRow, *, allowed: bool) -> None:
    """Let a decommissioned device be enrolled again, or block its identifier.

    Args:
        row: The device.
        allowed: Whether it may.

    Raises:
        IllegalTransitionError: It is not decommissioned.
    """
    if row.state != DeviceState.DECOMMISSIONED:
        raise IllegalTransitionError(
            f"device {row.id} is {row.state}, not decommissioned",
            remedy="a device that is not decommissioned enrols again with its own key",
        )
    row.may_enrol_again = allowed


def move(session: Session, device: str, target: DeviceState) -> None:
    """Change the state of a device by the operator's order; the broker disconnects one shut out.

    Args:
        session: The transaction.
        device: Its identifier.
        target: The new state.

    Raises:
        IllegalTransitionError: It was decommissioned: only an enrolment brings it back.
    """
    allowed = (DeviceState.ENROLLED, DeviceState.QUARANTINED)
    changed = changed_rows(
        session,
        update(DeviceRow)
        .where(DeviceRow.id == device, DeviceRow.state.in_(allowed))
        .values({"state": target} | ({} if target is DeviceState.ENROLLED else {"online": False})),
    )
    if changed != 1:
        raise IllegalTransitionError(
            f"device {device} is decommissioned and cannot become {target}",
            remedy="`fleet device readmit` lets it enrol again",
        )


def count_silent(session: Session, *, since_s: float) -> int:
    """Return how many devices are recorded as online but have sent nothing since a time."""
    statement = (
        select(func.count())
        .select_from(DeviceRow)
        .where(DeviceRow.online.is_(True), DeviceRow.last_seen_at_s < since_s)
    )
    return session.scalar(statement) or 0


def mark_silent(session: Session, *, since_s: float) -> int:
    """Record devices as offline that have sent nothing since a time: a last will may be lost.

    Args:
        session: The transaction.
        since_s: The time.

    Returns:
        How many devices.
    """
    return changed_rows(
        session,
        update(DeviceRow)
        .where(DeviceRow.online.is_(True), DeviceRow.last_seen_at_s < since_s)
        .values(online=False),
    )


def _condition(term: Term) -> ColumnElement[bool]:
    own = _OWN.get(term.key)
    if own is not None:
        return {
            "in": own.in_(term.values),
            "not_in": own.not_in(term.values),
            "exists": own.is_not(None),
            "absent": own.is_(None),
        }[term.operator]
    label = exists().where(DeviceLabelRow.device == DeviceRow.id, DeviceLabelRow.key == term.key)
    valued = label.where(DeviceLabelRow.value.in_(term.values))
    return {"in": valued, "not_in": ~valued, "exists": label, "absent": ~label}[term.operator]
