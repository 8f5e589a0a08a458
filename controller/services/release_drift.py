"""Tells which devices run another release than they should, since when, and why.

Rules:
- What a device runs is its own word: of its last hello or report. One that reported a success, and
  says then that another release is active, contradicts itself. It is told its desired state again
  like one that lost it (`controller.store.lagging`), and has to report how that went.
"""

from __future__ import annotations

from controller.device_schemas import DriftedModel
from controller.domain.release_drift import Cause, Known, cause
from controller.domain.states import ORDERED_DEPLOYMENTS, DeploymentState
from controller.store import release_drift
from controller.store.database import Database
from controller.store.device_tables import DeviceRow
from controller.store.groups import read_selector
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.release_drift import Differing
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow
from wire.clock import Clock

IDLE = "idle"
"""The phase of a model of which nothing is installed."""


class ReleaseDrift:
    """Desired against reported releases.

    Args:
        database: The control state.
        clock: Wall time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def found(
        self, selector: str, *, after: tuple[str, str] = ("", ""), limit: int
    ) -> list[DriftedModel]:
        """Return the devices and models that differ, by name.

        Args:
            selector: Which devices; empty for all.
            after: Begin after this device and model.
            limit: The greatest number.

        Raises:
            SelectorError: The selector cannot be read.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            found = release_drift.rows(transaction, parsed, after=after, limit=limit)
            return [_shown(each) for each in found]


def _shown(each: Differing) -> DriftedModel:
    device, desired, part = each.device, each.desired, each.part
    told = each.told if each.told is not None and _is_of_order(each.told, desired) else None
    why = cause(
        Known(
            online=device.online,
            has_accepted=device.reported_revision >= each.state.revision,
            error=device.last_error,
            part=None if part is None else DeploymentState(part.state),
            order_accepted=device.reported_revision >= desired.release_revision,
            model_error=told.last_error if told is not None else "",
            installs=told is not None and told.phase not in {"", IDLE},
        )
    )
    return DriftedModel(
        device=device.id,
        model=desired.model,
        online=device.online,
        last_seen_at_s=device.last_seen_at_s,
        release=_name(each.running, each.told.release if each.told is not None else None),
        desired_release=_name(each.wanted, desired.release) or "",
        rollout=desired.rollout,
        cause=why,
        since_s=_since_s(why, device, part) or each.state.issued_at_s,
        detail=_detail(why, device, part, told),
    )


def _is_of_order(told: DeviceModelRow, desired: DesiredModelRow) -> bool:
    """Tell whether what a device says of a model is about the order that it has now."""
    return told.revision >= desired.release_revision


def _since_s(why: Cause, device: DeviceRow, part: DeploymentRow | None) -> float | None:
    """Return since when that is so; None if nothing tells more than when the order was given."""
    if why is Cause.OFFLINE:
        return device.last_seen_at_s
    if part is None:
        return None
    return part.finished_at_s or part.started_at_s


def _detail(
    why: Cause, device: DeviceRow, part: DeploymentRow | None, told: DeviceModelRow | None
) -> str:
    """Return what the device or the controller said of it; empty for nothing."""
    if why is Cause.REFUSES:
        return device.last_error
    if why is Cause.FAILED:
        if part is not None and part.state == DeploymentState.FAILED:
            return f"{part.error_code}: {part.detail}"
        return told.last_error if told is not None else ""
    if why is not Cause.IN_FLIGHT:
        return ""
    if part is not None and part.state in ORDERED_DEPLOYMENTS:
        return part.phase
    return told.phase if told is not None and told.phase != IDLE else ""


def _name(release: ReleaseRow | None, digest: str | None) -> str | None:
    return digest if release is None else f"{release.name}:{release.version}"
