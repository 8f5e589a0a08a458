"""What devices say of each of their models.

Rules:
- An agent that has one model does not name it. The controller finds the name by the digest of the
  package: that of a release that the device should run, or of any other release. A package that
  nobody knows is taken for the one model that the device should run, or else has no name.
- A model that a device no longer has is remembered only while the device should run it, or for
  why its install failed.
- Texts from a device are cut, and their control characters removed, before they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.store.device_status import DeviceStatus
from controller.store.model_tables import DeviceModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.tables import ERROR_CHARS, NAME_CHARS
from wire.desired import MAX_MODELS, MAX_REVISION
from wire.installs import InstallReport
from wire.package.index import is_digest
from wire.presence import Hello, ServedModel
from wire.profile import NAME_PATTERN

NO_NAME = ""
"""The model of a package that nobody knows."""

Wanted = Mapping[str, str | None]
"""The models that a device is to run, each with the digest of its release."""


def take_all(session: Session, known: DeviceStatus, hello: Hello) -> dict[str, str | None]:
    """Record all models that a device says it has.

    Args:
        session: The transaction.
        known: The device.
        hello: What it says.

    Returns:
        Model to the digest of the package that is active.
    """
    wanted = known.wanted
    told = {item.name: item for item in _served(session, hello, wanted)}
    for row in [row for model, row in known.told.items() if model not in told]:
        if row.model in wanted or row.last_error:
            row.release, row.variant = None, None
        else:
            _remove(known, row)
    for model, item in told.items():
        row = known.told.get(model) or _new(known, model)
        row.revision = item.revision if 0 <= item.revision <= MAX_REVISION else 0
        row.release = digest(item.release)
        row.variant = name(item.variant)
    return {model: digest(item.release) for model, item in told.items()}


def take_one(
    session: Session, known: DeviceStatus, report: InstallReport, *, model: str, error: str
) -> None:
    """Record what a report says of a model.

    Args:
        session: The transaction.
        known: The device.
        report: What it says.
        model: The model that it is about.
        error: How the install failed, if it has ended; empty if it succeeded.
    """
    wanted, told = known.wanted, known.told.get(model)
    is_over = report.outcome != "running"
    active = digest(report.active)
    owner, is_unnamed = model, isinstance(report.model, msgspec.UnsetType)
    is_same = told is not None and (not is_unnamed or active == told.release)
    if is_unnamed and not is_same:  # it says what the device runs, of any model
        owner = _owner(session, active, wanted) if active is not None else model
        for row in known.told.values():
            if row.model not in {owner, model}:
                row.release, row.variant = None, None
    if active is None and is_over and not error and model not in wanted:
        if told is not None:
            _remove(known, told)
        return
    if told is None and model not in wanted and len(known.told) >= MAX_MODELS:
        return  # no device has so many
    row = told or _new(known, model)
    row.revision = report.revision
    row.phase = "idle" if is_over else report.phase
    if is_over:
        row.last_error = error[:ERROR_CHARS]
    if owner != model:
        row.release, row.variant = None, None
        row = known.told.get(owner) or _new(known, owner)
    row.release = active
    row.variant = name(report.variant)


def digest(text: str | None) -> str | None:
    """Return what a device names as a digest; None if it is none."""
    return text if text is not None and is_digest(text) else None


def name(text: str | None) -> str | None:
    """Return what a device names as a variant."""
    return clean(text, NAME_CHARS) if text is not None else None


def _served(session: Session, hello: Hello, wanted: Wanted) -> list[ServedModel]:
    """Return the models that a hello tells of, those with a name that can be."""
    if not isinstance(hello.models, msgspec.UnsetType):
        named = [item for item in hello.models if NAME_PATTERN.fullmatch(item.name)]
        return named[:MAX_MODELS]
    active = digest(hello.release)
    if active is None:
        return []
    return [
        ServedModel(
            name=_owner(session, active, wanted),
            revision=hello.revision,
            release=active,
            variant=hello.variant,
        )
    ]


def _owner(session: Session, active: str, wanted: Wanted) -> str:
    """Return the model that a package belongs to."""
    for model, release in wanted.items():
        if release == active:
            return model
    known = session.scalar(select(ReleaseRow.name).where(ReleaseRow.digest == active))
    if known is not None:
        return known
    return next(iter(wanted)) if len(wanted) == 1 else NO_NAME


def _remove(known: DeviceStatus, row: DeviceModelRow) -> None:
    known.changes.remove(known.told.pop(row.model))


def _new(known: DeviceStatus, model: str) -> DeviceModelRow:
    row = DeviceModelRow(
        device=known.device.id,
        model=model,
        revision=0,
        release=None,
        variant=None,
        phase="",
        last_error="",
    )
    known.told[model] = row
    known.changes.add(row)
    return row
