"""What devices say of themselves when they connect, leave or enrol, and what that changes.

Rules:
- An agent that reads another form of desired states than before gets its own in a new revision: the
  same revision never comes in two forms.
- A device whose record is newer than the database leads: its revision is believed, within reason.
- Texts from a device are cut, and their control characters removed, before they are stored.
"""

from __future__ import annotations

import msgspec
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.store import desired, device_models, devices, policy_choices
from controller.store.device_status import DeviceStatus, set_seen
from controller.store.device_tables import DeviceRow
from controller.store.device_values import steady_attributes
from controller.store.model_tables import DesiredStateRow
from controller.store.tables import MAX_CODE_CHARS, MAX_DETAIL_CHARS
from wire.desired import MAX_REVISION, MAX_REVISION_STEP, ONE_RELEASE, WINDOWS
from wire.enrolling import EnrolRequest
from wire.errors import shortened
from wire.presence import Hello, Presence

DOUBTED = "agent.enrolment"


def take_hello(
    session: Session, known: DeviceStatus, hello: Hello, *, peer_url: str | None, now_s: float
) -> bool:
    """Record what a device says of itself in a hello.

    Args:
        session: The transaction.
        known: The device.
        hello: What it says; its profile is checked.
        peer_url: Where it serves others, if that is believed.
        now_s: Wall time.

    Returns:
        Whether the controller has to send the device its desired state.
    """
    row, wanted = known.device, known.desired
    attributes = steady_attributes(row)
    devices.set_profile(row, hello.profile)
    row.runtimes = _runtimes(hello)
    row.greeted = True
    row.peer_url = peer_url
    row.allows_shadows = hello.shadows is not False
    row.trust_file = isinstance(hello.metadata, msgspec.UnsetType)
    row.agent_version = clean(hello.agent_version, MAX_CODE_CHARS)
    if attributes != steady_attributes(row):
        policy_choices.mark_stale(session, row.id)
    boot_id, was_unheard = clean(hello.boot_id, MAX_CODE_CHARS), row.boot_id == ""
    if row.boot_id != boot_id:
        row.boot_id, row.report_sequence = boot_id, 0
    row.reported_revision = _believed(hello.revision, wanted)
    before = {item.desired.model: item.told and item.told.release for item in known.named}
    now = device_models.take_all(session, known, hello)
    set_seen(row, now_s=now_s)
    form = _form(hello)
    before_form, row.desired_form = row.desired_form, form
    has_windows = any(item.desired.windows for item in known.named)
    # Without windows the newest form is the one before.
    reads_another = before_form != form and (has_windows or ONE_RELEASE in {before_form, form})
    if wanted is None:
        return False
    if wanted.revision < row.reported_revision:
        # The database is older than the device, as after a restore by hand.
        _reissue(session, known, above=row.reported_revision, now_s=now_s)
        return True
    # The same revision never comes in two forms: what a device was told that was not heard of yet,
    # as after a restore, takes no model away; what it is told now names all that it has.
    has = [model for model, release in now.items() if model and release is not None]
    if reads_another or was_unheard or any(model not in known.models for model in has):
        _reissue(session, known, above=wanted.revision, now_s=now_s)
        return True
    if any(known.models[model].desired.removed for model in has if model in known.models):
        return True
    if row.reported_revision < wanted.revision:
        return True
    # A device that lost its release is told again, and one that has it back says how that went.
    return any(
        item.at_work is not None
        or (
            item.desired.release is not None
            and {before[model], now.get(model)} != {item.desired.release}
        )
        for item in known.named
        for model in [item.desired.model]
    )


def _form(hello: Hello) -> int:
    form = hello.desired_form
    return max(ONE_RELEASE, min(form, WINDOWS)) if isinstance(form, int) else ONE_RELEASE


def _runtimes(hello: Hello) -> list[str] | None:
    if isinstance(hello.runtimes, msgspec.UnsetType):
        return None
    present = set(hello.runtimes)
    return [name for name in hello.profile.runtimes if name in present]


def take_presence(row: DeviceRow, presence: Presence, *, now_s: float) -> None:
    """Record whether a device is connected; a last will of an earlier boot is ignored."""
    if not presence.online and row.boot_id not in {"", clean(presence.boot_id, MAX_CODE_CHARS)}:
        return
    set_seen(row, now_s=now_s, online=presence.online)


def note_doubt(row: DeviceRow, request: EnrolRequest) -> None:
    """Record why a device that asks again does not believe the answer, or that it does now."""
    if isinstance(request.doubt, str):
        detail = f"the device does not believe this controller: {request.doubt}"
        detail = shortened(clean(detail, 2 * MAX_DETAIL_CHARS), MAX_DETAIL_CHARS)
        row.last_error = f"{DOUBTED}: {detail}"
    elif row.last_error.startswith(DOUBTED):
        row.last_error = ""


def _reissue(session: Session, known: DeviceStatus, *, above: int, now_s: float) -> None:
    known.changes.write(session)  # what the device has counts there
    revision = desired.reissue(session, known.device.id, above=above, now_s=now_s)
    for item in known.models.values():
        if item.deployment is not None:
            item.deployment.revision = revision


def _believed(revision: int, wanted: DesiredStateRow | None) -> int:
    """Return the revision that a device says it has accepted; 0 if it cannot be.

    A device with a wrong record would drag the revisions to their end, where they cannot grow. It
    gets its desired state as it is, and accepts it because it names its present start.
    """
    issued = 0 if wanted is None else wanted.revision
    is_possible = 0 <= revision <= min(issued + MAX_REVISION_STEP, MAX_REVISION)
    return revision if is_possible else 0
