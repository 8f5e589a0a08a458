"""Desired states: one per device, with a revision that only grows.

Rules:
- A revision always means the same document: all that is sent to the device is stored with it, also
  the policy. Only the start of the agent is added, by which a device sees that it is no recording.
- A change of policy raises only the revision: the release, its rollout, the revision in which it
  was given and every deployment stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.policy_choice import FleetPolicy, choose_policy
from controller.domain.selectors import parse_selector
from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
    ReleaseState,
)
from controller.store import devices as device_rows
from controller.store.database import in_batches
from controller.store.tables import (
    DeploymentRow,
    DesiredStateRow,
    DeviceRow,
    PolicyRow,
    PolicySetRow,
    ReleaseRow,
)
from wire.codec import convert, to_builtins
from wire.messages import MAX_REVISION, DesiredState, ReleaseRef
from wire.policy import PolicySpec

REPORT_LOST_AFTER_S = 10.0
"""If a device installs and sends no report for this long, it gets its desired state again, because
its last report may be lost, as when the controller was down. The device repeats the report."""

STALE = 0
"""A generation of the policies that is never the current one."""

ONE_POLICY_SET = 1
"""Key of the only row of `PolicySetRow`."""

_DEFAULT = to_builtins(PolicySpec())
_FIRST_DEFAULT = to_builtins(PolicySpec(kind="rules"))
"""What a desired state without a policy was issued with: by controllers of before, whose default
this was. It stays until the next one is issued, as a revision never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All policies at one time."""

    generation: int
    policies: tuple[FleetPolicy, ...]


def issue(
    session: Session,
    releases: Mapping[str, str | None],
    *,
    rollout: str | None,
    now_s: float,
    above: int = 0,
) -> dict[str, int]:
    """Give each device a new desired state.

    Args:
        session: The transaction.
        releases: Device to digest, or to None for nothing.
        rollout: For which rollout.
        now_s: Wall time.
        above: The new revisions are also greater than this.

    Returns:
        Device to new revision.
    """
    revisions: dict[str, int] = {}
    for batch in in_batches(sorted(releases)):
        known = {row.device: row for row in _locked(session, batch)}
        rows = [known.get(device) or DesiredStateRow(device=device, revision=0) for device in batch]
        reported = _reported(session, batch)
        _choose_policies(session, rows)
        for row in rows:
            before = max(row.revision, reported.get(row.device, 0), above)
            row.revision = row.release_revision = min(before + 1, MAX_REVISION)
            row.release = releases[row.device]
            row.rollout = rollout
            row.issued_at_s = now_s
            revisions[row.device] = row.revision
        session.add_all(rows)
    session.flush()
    return revisions


def choose_policies_again(session: Session, devices: Sequence[str], *, now_s: float) -> list[str]:
    """Give devices the policy that now applies to them; if it differs, in a new revision.

    Args:
        session: The transaction.
        devices: Which devices; those without a desired state get the policy with their first.
        now_s: Wall time.

    Returns:
        The devices that have a new revision and are online.
    """
    changed: list[str] = []
    for batch in in_batches(sorted(devices)):
        for row in _choose_policies(session, _locked(session, batch)):
            row.revision += 1
            row.issued_at_s = now_s
            changed.append(row.device)
    session.flush()
    return [name for batch in in_batches(changed) for name in _online(session, batch)]


def documents(session: Session, devices: Sequence[str]) -> list[DesiredState]:
    """Return the desired states of some devices as the director sends them.

    Args:
        session: The transaction.
        devices: Which devices.

    Returns:
        Those of enrolled devices whose release has not been revoked.
    """
    found: list[DesiredState] = []
    for batch in in_batches(devices):
        rows = session.execute(
            select(DesiredStateRow, ReleaseRow, DeviceRow.boot_id)
            .join(DeviceRow, DeviceRow.id == DesiredStateRow.device)
            .outerjoin(ReleaseRow, ReleaseRow.digest == DesiredStateRow.release)
            .where(
                DesiredStateRow.device.in_(batch),
                DeviceRow.state == DeviceState.ENROLLED,
                or_(
                    DesiredStateRow.release.is_(None),
                    ReleaseRow.state == ReleaseState.PUBLISHED,
                ),
            )
        )
        found.extend(_document(*row) for row in rows)
    return found


def lagging(session: Session, *, now_s: float) -> dict[str, bool]:
    """Return online devices that have not accepted, not answered or lost their desired state.

    A device whose install failed is left out: it has answered, and would answer the same.

    Args:
        session: The transaction.
        now_s: Wall time.

    Returns:
        For each whether nothing is recorded but that it has not answered for some time. Reports of
        a transfer that goes on are not recorded.
    """
    unanswered = and_(
        func.coalesce(DeploymentRow.reported_at_s, DeploymentRow.started_at_s)
        < now_s - REPORT_LOST_AFTER_S,
        DeploymentRow.state.in_(ORDERED_DEPLOYMENTS),
    )
    lost = and_(device_rows.drifted(), DeploymentRow.state.is_distinct_from(DeploymentState.FAILED))
    behind = or_(DeviceRow.reported_revision < DesiredStateRow.revision, lost)
    statement = (
        select(DeviceRow.id, behind)
        .join(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .outerjoin(
            DeploymentRow,
            and_(
                DeploymentRow.device == DeviceRow.id,
                DeploymentRow.revision == DesiredStateRow.release_revision,
            ),
        )
        .outerjoin(ReleaseRow, ReleaseRow.digest == DesiredStateRow.release)
        .where(
            or_(DesiredStateRow.release.is_(None), ReleaseRow.state == ReleaseState.PUBLISHED),
            DeviceRow.online.is_(True),
            DeviceRow.state == DeviceState.ENROLLED,
            or_(behind, unanswered),
        )
    )
    return {device: not is_behind for device, is_behind in session.execute(statement)}


def current_policies(session: Session) -> PolicySet:
    """Return the policies that apply now."""
    # Read the generation first: if another controller changes a policy between the two queries,
    # the choice made here counts as older than it is, and is made once more.
    generation = session.get_one(PolicySetRow, ONE_POLICY_SET, populate_existing=True).generation
    rows = session.scalars(select(PolicyRow))
    return PolicySet(generation=generation, policies=tuple(to_policy(row) for row in rows))


def to_policy(row: PolicyRow) -> FleetPolicy:
    """Return a row as a policy of the domain."""
    return FleetPolicy(
        name=row.name,
        selector=parse_selector(row.selector),
        priority=row.priority,
        spec=convert(row.spec, PolicySpec),
    )


def mark_policy_stale(session: Session, device: str) -> None:
    """Mark a device's policy to be chosen again, because its labels or its profile changed."""
    session.execute(
        update(DesiredStateRow)
        .where(DesiredStateRow.device == device)
        .values(policy_generation=STALE)
        .execution_options(synchronize_session=False)
    )


def with_stale_policy(session: Session, *, limit: int) -> list[str]:
    """Return devices whose policy was chosen from an older generation of the policies."""
    generation = (
        select(PolicySetRow.generation).where(PolicySetRow.id == ONE_POLICY_SET).scalar_subquery()
    )
    return list(
        session.scalars(
            select(DesiredStateRow.device)
            .where(DesiredStateRow.policy_generation < generation)
            .order_by(DesiredStateRow.device)
            .limit(limit)
        )
    )


def _document(desired: DesiredStateRow, release: ReleaseRow | None, boot_id: str) -> DesiredState:
    ref = None
    if release is not None:
        ref = ReleaseRef(
            name=release.name,
            version=release.version,
            digest=release.digest,
            envelope_sha256=release.envelope_sha256,
            envelope_size_bytes=release.envelope_size_bytes,
        )
    return DesiredState(
        device=desired.device,
        revision=desired.revision,
        issued_at_s=desired.issued_at_s,
        release=ref,
        rollout=desired.rollout,
        policy=convert(desired.policy or _FIRST_DEFAULT, PolicySpec),
        boot_id=boot_id or msgspec.UNSET,
    )


def _locked(session: Session, devices: Sequence[str]) -> list[DesiredStateRow]:
    """Return desired states as they are now; every writer locks them in this order."""
    statement = (
        select(DesiredStateRow)
        .where(DesiredStateRow.device.in_(devices))
        .order_by(DesiredStateRow.device)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement))


def _reported(session: Session, devices: Sequence[str]) -> dict[str, int]:
    """Return the revisions that devices have accepted: the database may be older than they."""
    rows = session.execute(
        select(DeviceRow.id, DeviceRow.reported_revision).where(DeviceRow.id.in_(devices))
    )
    return {row.id: row.reported_revision for row in rows}


def _choose_policies(session: Session, rows: Sequence[DesiredStateRow]) -> list[DesiredStateRow]:
    """Choose the policies of locked desired states; return those whose policy changed."""
    if not rows:
        return []
    known = current_policies(session)
    values = device_rows.values_of(session, [row.device for row in rows]) if known.policies else {}
    changed: list[DesiredStateRow] = []
    for row in rows:
        chosen = choose_policy(known.policies, values.get(row.device, {}))
        spec = _DEFAULT if chosen is None else to_builtins(chosen.spec)
        if spec != (row.policy or _FIRST_DEFAULT):
            changed.append(row)
        row.policy = spec
        row.policy_name = None if chosen is None else chosen.name
        row.policy_generation = known.generation
    return changed


def _online(session: Session, devices: Sequence[str]) -> list[str]:
    return list(
        session.scalars(
            select(DeviceRow.id)
            .where(DeviceRow.id.in_(devices), DeviceRow.online.is_(True))
            .order_by(DeviceRow.id)
        )
    )
