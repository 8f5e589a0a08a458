"""The messages of devices about themselves, and what these change in the control state.

Rules:
- Most messages need one query: `find` returns all that is known about the device.
- A report counts if its revision holds the release that was last issued to the device; a later
  revision may have changed only the policy. Reports for older releases are ignored.
- A report that an earlier start of the agent sent, or that comes after a later one, is ignored.
- A success counts only if the device runs the release that it was told to run.
- The last report for a revision is its outcome: a device may still take back a success while its
  rollout goes on. A failure is final.
- A device that refuses the desired state that was sent has failed, and its rollout sees that. A
  refusal of anything else is shown with the device alone: nobody knows who sent it.
- A report that says nothing new but how far a transfer is changes no row: that is kept in memory
  (`controller.services.transfers`), and thousands of devices must not cost a write each.
- Texts from a device are cut, and their control characters removed, before they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DEPLOYMENT_TRANSITIONS,
    ORDERED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
    DeviceState,
    outcome,
    sources,
)
from controller.domain.transfers import is_fetching, size
from controller.store import desired, devices
from controller.store.database import changed_rows
from controller.store.deployment_changes import Verdict
from controller.store.tables import (
    MAX_CODE_CHARS,
    MAX_DETAIL_CHARS,
    DeploymentRow,
    DesiredStateRow,
    DeviceRow,
    RolloutRow,
)
from wire.errors import shortened
from wire.messages import (
    MAX_REVISION,
    MAX_REVISION_STEP,
    EnrolRequest,
    Hello,
    InstallReport,
    Presence,
    Refusal,
)
from wire.package.index import is_digest
from wire.profile import checked_profile

MISMATCH = "controller.report.mismatch"
UNNAMED = "controller.report.unnamed"
DOUBTED = "agent.enrolment"
OLDER = "agent.refused.older"
"""The code with which a device refuses what is older than what it accepted."""

SEEN_EVERY_S = 30.0
"""How exact `last_seen_at_s` is: not every message of a device must cause a write."""

# Built once: building a statement takes longer than SQLite takes to answer it.
_STATUS = (
    select(DeviceRow, DesiredStateRow, DeploymentRow)
    .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .outerjoin(
        DeploymentRow,
        and_(
            DeploymentRow.device == DeviceRow.id,
            DeploymentRow.revision == DesiredStateRow.release_revision,
            or_(
                DeploymentRow.state == DeploymentState.WAITING,
                DeploymentRow.rollout.in_(
                    select(RolloutRow.id).where(RolloutRow.state.in_(ACTIVE_ROLLOUTS))
                ),
            ),
        ),
    )
    .where(DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED)
)
_SEEN = select(DeviceRow.online, DeviceRow.last_seen_at_s).where(
    DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """An enrolled device, its desired state, and its deployment for it.

    The deployment is one of a rollout that has not ended, or one that waited when it ended.
    """

    device: DeviceRow
    desired: DesiredStateRow | None
    deployment: DeploymentRow | None


def find(session: Session, device: str) -> DeviceStatus | None:
    """Return what is known of a device, or None when it is not enrolled."""
    found = session.execute(_STATUS, {"device": device}).first()
    if found is None:
        return None
    row, wanted, part = found
    return DeviceStatus(device=row, desired=wanted, deployment=part)


def note_seen(row: DeviceRow, *, now_s: float) -> None:
    """Record that a device said something."""
    if _is_stale(row.online, row.last_seen_at_s, now_s):
        row.online = True
        row.last_seen_at_s = now_s


def is_noted(session: Session, device: str, *, now_s: float) -> bool | None:
    """Tell whether a recent message of a device is already recorded; None for an unknown device."""
    found = session.execute(_SEEN, {"device": device}).first()
    if found is None:
        return None
    return not _is_stale(found[0], found[1], now_s)


def take_hello(
    session: Session, known: DeviceStatus, hello: Hello, *, peer_url: str | None, now_s: float
) -> bool:
    """Record what a device says of itself in a hello.

    Args:
        session: The transaction.
        known: The device.
        hello: What it says.
        peer_url: Where it serves others, if that is believed.
        now_s: Wall time.

    Returns:
        Whether the controller has to send the device its desired state.

    Raises:
        WireFormatError: An impossible profile.
    """
    row, wanted = known.device, known.desired
    kind = (row.profile_name, row.architecture)
    devices.set_profile(row, checked_profile(hello.profile))
    if kind != (row.profile_name, row.architecture):
        desired.mark_policy_stale(session, row.id)
    row.runtimes = _runtimes(hello)
    row.greeted = True
    row.peer_url = peer_url
    row.agent_version = clean(hello.agent_version, MAX_CODE_CHARS)
    boot_id = clean(hello.boot_id, MAX_CODE_CHARS)
    if row.boot_id != boot_id:
        row.boot_id, row.report_sequence = boot_id, 0
    row.reported_revision = _believed(hello.revision, wanted)
    before, row.reported_release = row.reported_release, _digest(hello.release)
    row.variant = _name(hello.variant)
    row.online = True
    row.last_seen_at_s = now_s
    if wanted is None:
        return False
    part = known.deployment
    if wanted.revision < row.reported_revision:
        # The database is older than the device, as after a restore by hand.
        _reissue(session, wanted, part, above=row.reported_revision, now_s=now_s)
        return True
    at_work = part is not None and part.state in ORDERED_DEPLOYMENTS
    if wanted.release is None:
        return row.reported_revision < wanted.revision or at_work
    # A device that lost its release is told again, and one that has it back says how that went.
    differs = row.reported_release != wanted.release or before != wanted.release
    return row.reported_revision < wanted.revision or at_work or differs


def _runtimes(hello: Hello) -> list[str] | None:
    if isinstance(hello.runtimes, msgspec.UnsetType):
        return None
    present = set(hello.runtimes)
    return [name for name in hello.profile.runtimes if name in present]


def take_presence(row: DeviceRow, presence: Presence, *, now_s: float) -> None:
    """Record whether a device is connected; a last will of an earlier boot is ignored."""
    if not presence.online and row.boot_id not in {"", clean(presence.boot_id, MAX_CODE_CHARS)}:
        return
    row.online = presence.online
    row.last_seen_at_s = now_s


def take_report(
    session: Session, known: DeviceStatus, report: InstallReport, *, now_s: float
) -> bool:
    """Record the progress that a device reports.

    Args:
        session: The transaction.
        known: The device.
        report: What it says.
        now_s: Wall time.

    Returns:
        False when the report is late or for an older release, and was ignored.
    """
    row, wanted = known.device, known.desired
    note_seen(row, now_s=now_s)
    if wanted is None or not wanted.release_revision <= report.revision <= wanted.revision:
        return False
    if _is_late(row, report):
        return False
    if _is_only_progress(known, report):
        return True
    if not isinstance(report.sequence, msgspec.UnsetType):
        row.report_sequence = report.sequence
    if not row.boot_id and not isinstance(report.boot_id, msgspec.UnsetType):
        row.boot_id = clean(report.boot_id, MAX_CODE_CHARS)
    row.reported_revision = max(row.reported_revision, report.revision)
    row.reported_release = _digest(report.active)
    row.variant = _name(report.variant)
    row.phase = "idle" if report.outcome != "running" else report.phase
    verdict = _verdict(report, wanted.release)
    if report.outcome != "running":
        code = verdict.error_code
        row.last_error = f"{code}: {verdict.detail}" if code else ""
    if known.deployment is not None:
        _judge(session, known.deployment, report, verdict, now_s)
    return True


def take_refusal(
    session: Session, known: DeviceStatus, refusal: Refusal, *, ours: bool, now_s: float
) -> bool:
    """Record that a device does not accept a desired state.

    Args:
        session: The transaction.
        known: The device.
        refusal: What it says.
        ours: Whether it refused the newest one that this controller has for it.
        now_s: Wall time.

    Returns:
        Whether this says something new.
    """
    row, part = known.device, known.deployment
    note_seen(row, now_s=now_s)
    code = clean(refusal.error_code, MAX_CODE_CHARS) or UNNAMED
    detail = clean(refusal.detail, MAX_DETAIL_CHARS)
    if code == OLDER and not ours:
        return False  # it was on its way while a newer one was accepted
    if not ours:
        detail = shortened(f"it is not what this controller sent last: {detail}", MAX_DETAIL_CHARS)
    before, row.last_error = row.last_error, f"{code}: {detail}"
    at_work = part is not None and part.state in ORDERED_DEPLOYMENTS
    if part is not None and at_work and ours and code != OLDER:
        verdict = Verdict(error_code=code, detail=detail)
        if _settle(session, part, DeploymentEvent.FAIL, verdict, now_s=now_s):
            part.reported_at_s = now_s
    return row.last_error != before


def note_doubt(row: DeviceRow, request: EnrolRequest) -> None:
    """Record why a device that asks again does not believe the answer, or that it does now."""
    if isinstance(request.doubt, str):
        detail = f"the device does not believe this controller: {request.doubt}"
        detail = shortened(clean(detail, 2 * MAX_DETAIL_CHARS), MAX_DETAIL_CHARS)
        row.last_error = f"{DOUBTED}: {detail}"
    elif row.last_error.startswith(DOUBTED):
        row.last_error = ""


def _is_late(row: DeviceRow, report: InstallReport) -> bool:
    """Tell whether a newer report of the device has been recorded, or it began anew since."""
    boot_id, sequence = report.boot_id, report.sequence
    if isinstance(boot_id, msgspec.UnsetType) or isinstance(sequence, msgspec.UnsetType):
        return False  # an agent that does not count
    # After a restore the present start of a device is unknown until it says so.
    same_boot = row.boot_id in {"", clean(boot_id, MAX_CODE_CHARS)}
    return not same_boot or not row.report_sequence < sequence <= MAX_REVISION


def _is_only_progress(known: DeviceStatus, report: InstallReport) -> bool:
    """Tell whether a report says nothing that is not recorded, but how far a transfer is."""
    row, part = known.device, known.deployment
    if not is_fetching(report) or row.boot_id == "":
        return False
    recorded = (row.phase, row.reported_release, row.variant)
    told = (report.phase, _digest(report.active), _name(report.variant))
    if recorded != told or row.reported_revision < report.revision:
        return False
    if part is None or part.state not in ORDERED_DEPLOYMENTS:
        return True
    return (part.phase, part.detail) == (report.phase, clean(report.detail, MAX_DETAIL_CHARS))


def _judge(
    session: Session, part: DeploymentRow, report: InstallReport, verdict: Verdict, now_s: float
) -> None:
    if report.outcome != "running":
        event = DeploymentEvent.FAIL if verdict.error_code else DeploymentEvent.SUCCEED
        if not _settle(session, part, event, verdict, now_s=now_s):
            return
    elif part.state not in ORDERED_DEPLOYMENTS:
        return
    else:
        part.detail = clean(report.detail, MAX_DETAIL_CHARS)  # what the install waits for
    part.reported_at_s = now_s
    part.phase = report.phase
    part.done_bytes = size(report.done_bytes)
    part.total_bytes = size(report.total_bytes)


def _settle(
    session: Session, part: DeploymentRow, event: DeploymentEvent, verdict: Verdict, *, now_s: float
) -> bool:
    """Record the outcome that a device reported.

    Args:
        session: The transaction.
        part: The deployment.
        event: `SUCCEED` or `FAIL`.
        verdict: Why.
        now_s: Wall time.

    Returns:
        False when the deployment is in a state that this outcome does not change.
    """
    changed = changed_rows(
        session,
        update(DeploymentRow)
        .where(
            DeploymentRow.rollout == part.rollout,
            DeploymentRow.device == part.device,
            DeploymentRow.revision == part.revision,
            DeploymentRow.state.in_(sources(DEPLOYMENT_TRANSITIONS, event)),
        )
        .values(
            state=outcome(DEPLOYMENT_TRANSITIONS, event),
            finished_at_s=now_s,
            error_code=verdict.error_code,
            detail=verdict.detail,
        )
        .execution_options(synchronize_session=False),
    )
    return changed == 1


def _verdict(report: InstallReport, wanted: str | None) -> Verdict:
    if report.outcome == "failed":
        code = clean(report.error_code, MAX_CODE_CHARS) or UNNAMED
        return Verdict(error_code=code, detail=clean(report.detail, MAX_DETAIL_CHARS))
    if report.outcome == "succeeded" and wanted is not None and report.active != wanted:
        runs = "another release" if report.active is not None else "no release"
        detail = f"the device reported success, but it runs {runs}"
        return Verdict(error_code=MISMATCH, detail=detail)
    return Verdict()


def _reissue(
    session: Session,
    wanted: DesiredStateRow,
    part: DeploymentRow | None,
    *,
    above: int,
    now_s: float,
) -> None:
    device = wanted.device
    revisions = desired.issue(
        session, {device: wanted.release}, rollout=wanted.rollout, now_s=now_s, above=above
    )
    if part is not None:
        part.revision = revisions[device]


def _believed(revision: int, wanted: DesiredStateRow | None) -> int:
    """Return the revision that a device says it has accepted; 0 if it cannot be.

    A device with a wrong record would drag the revisions to their end, where they cannot grow. It
    gets its desired state as it is, and accepts it because it names its present start.
    """
    issued = 0 if wanted is None else wanted.revision
    is_possible = 0 <= revision <= min(issued + MAX_REVISION_STEP, MAX_REVISION)
    return revision if is_possible else 0


def _digest(text: str | None) -> str | None:
    return text if text is not None and is_digest(text) else None


def _name(text: str | None) -> str | None:
    return clean(text, 63) if text is not None else None


def _is_stale(online: bool, last_seen_at_s: float | None, now_s: float) -> bool:
    return not online or last_seen_at_s is None or last_seen_at_s < now_s - SEEN_EVERY_S
