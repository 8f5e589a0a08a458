"""The messages of devices about themselves, and what these change in the control state.

Rules:
- Most messages need one query: `find` returns all that is known about the device.
- A report is about one model, and changes nothing of the others.
- A report counts if its revision holds the release that was last issued to the device; a later
  revision may have changed only a policy or another model. Reports for older releases are ignored.
- A report that an earlier start of the agent sent, or that comes after a later one, is ignored.
- A success counts only if the device runs the release that it was told to run.
- The last report for a revision is its outcome: a device may still take back a success while its
  rollout goes on. A failure is final.
- A device that refuses the desired state that was sent has failed in what that was to start, and
  the rollouts see that. A refusal of anything else is shown with the device alone: nobody knows
  who sent it.
- A report that says nothing new but how far a transfer is changes no row: that is kept in memory
  (`controller.services.transfers`), and thousands of devices must not cost a write each.
- Texts from a device are cut, and their control characters removed, before they are stored.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import update
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.domain.states import (
    DEPLOYMENT_TRANSITIONS,
    ORDERED_DEPLOYMENTS,
    DeploymentEvent,
    outcome,
    sources,
)
from controller.domain.transfers import is_fetching, size
from controller.store import device_models
from controller.store.database import changed_rows
from controller.store.deployment_changes import Verdict
from controller.store.device_status import DeviceStatus, ModelStatus, note_seen
from controller.store.tables import (
    MAX_CODE_CHARS,
    MAX_DETAIL_CHARS,
    DeploymentRow,
    DeviceRow,
)
from wire.desired import MAX_REVISION
from wire.errors import shortened
from wire.installs import InstallReport, Refusal
from wire.profile import NAME_PATTERN

MISMATCH = "controller.report.mismatch"
UNNAMED = "controller.report.unnamed"
OLDER = "agent.refused.older"
"""The code with which a device refuses what is older than what it accepted."""


def take_report(
    session: Session, known: DeviceStatus, report: InstallReport, *, now_s: float
) -> str | None:
    """Record the progress that a device reports.

    Args:
        session: The transaction.
        known: The device.
        report: What it says.
        now_s: Wall time.

    Returns:
        The model that it is about; None when the report is late or for an older release, and was
        ignored.
    """
    row, wanted = known.device, known.desired
    note_seen(row, now_s=now_s)
    model = _model_of(known, report)
    about = known.models.get(model or "")
    if wanted is None or model is None or report.revision > wanted.revision:
        return None
    if about is not None and report.revision < about.desired.release_revision:
        return None
    if _is_late(row, report):
        return None
    if about is not None and _is_only_progress(row, about, report):
        return model
    if not isinstance(report.sequence, msgspec.UnsetType):
        row.report_sequence = report.sequence
    if not row.boot_id and not isinstance(report.boot_id, msgspec.UnsetType):
        row.boot_id = clean(report.boot_id, MAX_CODE_CHARS)
    row.reported_revision = max(row.reported_revision, report.revision)
    verdict = _verdict(report, about.desired.release if about is not None else None)
    error = f"{verdict.error_code}: {verdict.detail}" if verdict.error_code else ""
    told = None if about is None else about.told
    device_models.take_one(
        session, row, report, model=model, told=told, error=error, wanted=known.wanted
    )
    if report.outcome != "running":
        row.last_error = ""
    if about is not None and about.deployment is not None:
        _judge(session, about.deployment, report, verdict, now_s)
    return model


def _model_of(known: DeviceStatus, report: InstallReport) -> str | None:
    """Return the model that a report is about; None if nobody can tell.

    An agent that has one model does not name it: it is the one whose release it was given, or the
    one that it was given last, also if that was taken away since.
    """
    if not isinstance(report.model, msgspec.UnsetType):
        name = report.model
        return name if NAME_PATTERN.fullmatch(name) else None
    items = known.named or list(known.models.values())
    if not items:
        return device_models.NO_NAME
    by_digest = [item for item in items if report.digest and item.desired.release == report.digest]
    given = [item for item in items if item.desired.release_revision <= report.revision]
    newest = max(by_digest or given, key=lambda item: item.desired.release_revision, default=None)
    return None if newest is None else newest.desired.model


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
    row = known.device
    note_seen(row, now_s=now_s)
    code = clean(refusal.error_code, MAX_CODE_CHARS) or UNNAMED
    detail = clean(refusal.detail, MAX_DETAIL_CHARS)
    if code == OLDER and not ours:
        return False  # it was on its way while a newer one was accepted
    if not ours:
        detail = shortened(f"it is not what this controller sent last: {detail}", MAX_DETAIL_CHARS)
    before, row.last_error = row.last_error, f"{code}: {detail}"
    if ours and code != OLDER:
        verdict = Verdict(error_code=code, detail=detail)
        for part in _to_start(known):
            if _settle(session, part, DeploymentEvent.FAIL, verdict, now_s=now_s):
                part.reported_at_s = now_s
    return row.last_error != before


def _to_start(known: DeviceStatus) -> list[DeploymentRow]:
    """Return the deployments that the newest desired state of a device was to start.

    One that came with an earlier document goes on, if the device has accepted that one and refuses
    only what came later.
    """
    parts = [item.at_work for item in known.named if item.at_work is not None]
    accepted = known.device.reported_revision
    if known.desired is None or accepted >= known.desired.revision:
        return parts
    return [part for part in parts if (part.revision or 0) > accepted]


def _is_late(row: DeviceRow, report: InstallReport) -> bool:
    """Tell whether a newer report of the device has been recorded, or it began anew since."""
    boot_id, sequence = report.boot_id, report.sequence
    if isinstance(boot_id, msgspec.UnsetType) or isinstance(sequence, msgspec.UnsetType):
        return False  # an agent that does not count
    # After a restore the present start of a device is unknown until it says so.
    same_boot = row.boot_id in {"", clean(boot_id, MAX_CODE_CHARS)}
    return not same_boot or not row.report_sequence < sequence <= MAX_REVISION


def _is_only_progress(row: DeviceRow, about: ModelStatus, report: InstallReport) -> bool:
    """Tell whether a report says nothing that is not recorded, but how far a transfer is."""
    part, told = about.deployment, about.told
    if not is_fetching(report) or row.boot_id == "" or told is None:
        return False
    recorded = (told.phase, told.release, told.variant)
    now = (report.phase, device_models.digest(report.active), device_models.name(report.variant))
    if recorded != now or row.reported_revision < report.revision:
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
