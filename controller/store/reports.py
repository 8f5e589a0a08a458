"""The messages of devices about themselves, and what these change in the control state.

Rules:
- Most messages need no query but those of `device_status.find_all`, which is told of what changes.
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

from typing import Final

import msgspec
from sqlalchemy import bindparam, or_, update
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
from controller.store.deployment_changes import Verdict
from controller.store.device_status import DeviceStatus, ModelStatus, note_seen
from controller.store.device_tables import DeviceRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.row_changes import RowChanges, key_is, key_of
from controller.store.tables import MAX_CODE_CHARS, MAX_DETAIL_CHARS
from wire.desired import MAX_REVISION
from wire.errors import shortened
from wire.installs import InstallReport, Refusal
from wire.profile import NAME_PATTERN

MISMATCH = "controller.report.mismatch"
UNNAMED = "controller.report.unnamed"
OLDER = "agent.refused.older"
"""The code with which a device refuses what is older than what it accepted."""


_SETTLED: Final = {
    event: update(DeploymentRow.__table__)  # type: ignore[arg-type]  # which is a table
    .where(
        key_is(DeploymentRow),
        DeploymentRow.revision == bindparam("of_revision"),
        or_(*(DeploymentRow.state == each for each in sources(DEPLOYMENT_TRANSITIONS, event))),
    )
    .values(
        state=outcome(DEPLOYMENT_TRANSITIONS, event),
        **{
            name: bindparam(name)
            for name in (
                *("finished_at_s", "reported_at_s", "error_code", "detail"),
                *("phase", "done_bytes", "total_bytes"),
            )
        },
    )
    for event in (DeploymentEvent.SUCCEED, DeploymentEvent.FAIL)
}
"""What records an outcome, unless the deployment has a state that this does not change."""


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
    device_models.take_one(session, known, report, model=model, error=error)
    if report.outcome != "running":
        row.last_error = ""
    if about is not None and about.deployment is not None:
        _judge(known.changes, about.deployment, report, verdict, now_s)
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


def take_refusal(known: DeviceStatus, refusal: Refusal, *, ours: bool, now_s: float) -> bool:
    """Record that a device does not accept a desired state.

    Args:
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
            shown = (part.phase, part.done_bytes, part.total_bytes)
            _settle(known.changes, part, DeploymentEvent.FAIL, verdict, shown, now_s=now_s)
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
    changes: RowChanges, part: DeploymentRow, report: InstallReport, verdict: Verdict, now_s: float
) -> None:
    shown = (report.phase, size(report.done_bytes), size(report.total_bytes))
    if report.outcome != "running":
        event = DeploymentEvent.FAIL if verdict.error_code else DeploymentEvent.SUCCEED
        _settle(changes, part, event, verdict, shown, now_s=now_s)
    elif part.state in ORDERED_DEPLOYMENTS:
        part.detail = clean(report.detail, MAX_DETAIL_CHARS)  # what the install waits for
        part.reported_at_s = now_s
        part.phase, part.done_bytes, part.total_bytes = shown


def _settle(
    changes: RowChanges,
    part: DeploymentRow,
    event: DeploymentEvent,
    verdict: Verdict,
    shown: tuple[str, int, int],
    *,
    now_s: float,
) -> None:
    """Record the outcome that a device reported, unless it does not change the deployment's state.

    Args:
        changes: Takes it.
        part: The deployment.
        event: `SUCCEED` or `FAIL`.
        verdict: Why.
        shown: The phase, how many bytes have come, and of how many.
        now_s: Wall time.
    """
    phase, done_bytes, total_bytes = shown
    values = {
        **key_of(part),
        "of_revision": part.revision,
        "finished_at_s": now_s,
        "reported_at_s": now_s,
        "error_code": verdict.error_code,
        "detail": verdict.detail,
        "phase": phase,
        "done_bytes": done_bytes,
        "total_bytes": total_bytes,
    }
    changes.put(DeploymentRow, _SETTLED[event], values)


def _verdict(report: InstallReport, wanted: str | None) -> Verdict:
    if report.outcome == "failed":
        code = clean(report.error_code, MAX_CODE_CHARS) or UNNAMED
        return Verdict(error_code=code, detail=clean(report.detail, MAX_DETAIL_CHARS))
    if report.outcome == "succeeded" and wanted is not None and report.active != wanted:
        runs = "another release" if report.active is not None else "no release"
        detail = f"the device reported success, but it runs {runs}"
        return Verdict(error_code=MISMATCH, detail=detail)
    return Verdict()
