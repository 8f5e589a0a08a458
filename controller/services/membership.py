"""Devices that join a rollout that goes on, and devices that leave it.

Rules:
- Who joins starts after all others: the stages before the last do not grow.
- Who has started is not taken out: what has its order finishes, and counts.
- Each device that does not join or leave is told with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.domain.deployment_codes import EXCLUDED
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    ORDERED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
)
from controller.errors import ConflictError, IllegalTransitionError, InvalidRequestError
from controller.rollout_control_schemas import MAX_NAMED, JoinRequest, LeaveRequest, MembersChange
from controller.services import rollout_checks
from controller.services.preflight import Preflight
from controller.store import (
    deployment_changes,
    device_facts,
    free_devices,
    members,
    releases,
    rollouts,
)
from controller.store.database import Database, Transaction
from controller.store.deployment_changes import Verdict
from controller.store.groups import read_selector
from controller.store.tables import RolloutRow
from wire.clock import Clock
from wire.profile import NAME_PATTERN

_HAS_ORDER: Final = "it has its order: it finishes, and counts; an abort would send it back"
_ENDED: Final = "it has finished"


class Membership:
    """Lets devices join and leave rollouts.

    Args:
        database: The control state.
        preflight: Knows which devices cannot take a release.
        clock: Wall time.
    """

    def __init__(self, database: Database, preflight: Preflight, clock: Clock) -> None:
        self._database = database
        self._preflight = preflight
        self._clock = clock

    def add(self, rollout: str, request: JoinRequest) -> MembersChange:
        """Let devices join the tail of a rollout.

        Args:
            rollout: The rollout.
            request: Which devices.

        Returns:
            Who joined, and why others did not.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended, or its release was revoked.
            ConflictError: Its devices are those of another rollout, another rollout takes them, or
                an earlier order about it is still being carried out.
            InvalidRequestError: No device is named, or both devices and a selector.
            SelectorError: The selector cannot be read.
            FleetError: The files of the release cannot be read.
        """
        _check_named(request.devices, or_selector=request.selector)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = _open(transaction, rollout)
            _check_own(row)
            rollout_checks.check_cleared(transaction, row.model)
            release = releases.get_published(transaction, row.release)
            asked = request.devices
            if request.selector is not None:
                selector = read_selector(transaction, request.selector, now_s=now_s)
                asked = [fact.id for fact in device_facts.of_selector(transaction, selector)]
            unchanged = dict.fromkeys(asked, "no device of that name is enrolled")
            asked = _names(asked)
            unchanged |= dict.fromkeys(
                members.states(transaction, row.id, asked), "it is in the rollout already"
            )
            taken = free_devices.busy_among(transaction, row.model, asked)
            unchanged |= {
                device: f"it takes part in rollout {other}, which has not ended"
                for device, other in taken.items()
                if other != row.id
            }
            free = members.joinable(transaction, row.id, row.model, asked)
            unfit = self._preflight.unfit(transaction, release, free, is_windowed=bool(row.windows))
            unchanged |= {device: f"it would refuse: {why}" for device, why in unfit.items()}
            joining = [device for device in free if device not in unfit]
            if joining:
                members.join(transaction, row, joining, now_s=now_s)
        joined = frozenset(joining)
        return MembersChange(
            rollout=rollout,
            changed=joining,
            unchanged={name: why for name, why in unchanged.items() if name not in joined},
        )

    def exclude(self, rollout: str, request: LeaveRequest) -> MembersChange:
        """Take devices out of a rollout that have not started in it.

        Args:
            rollout: The rollout.
            request: Which devices.

        Returns:
            Who left, and what becomes of the others.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended.
            ConflictError: An earlier order about it is still being carried out.
            InvalidRequestError: No device is named.
        """
        _check_named(request.devices)
        now_s = self._clock.now_s()
        asked = sorted(set(request.devices))
        with self._database.transaction() as transaction:
            row = _open(transaction, rollout)
            known = members.states(transaction, row.id, _names(asked))
            leaving = [name for name in known if known[name] is DeploymentState.PENDING]
            if leaving:
                deployment_changes.move(
                    transaction,
                    row.id,
                    leaving,
                    DeploymentEvent.CANCEL,
                    now_s=now_s,
                    verdict=Verdict(error_code=EXCLUDED, detail="taken out by the operator"),
                )
                reason = rollouts.named(leaving, "taken out by the operator")
                rollouts.log(transaction, row.id, action="exclude", reason=reason, now_s=now_s)
        left = frozenset(leaving)
        return MembersChange(
            rollout=rollout,
            changed=leaving,
            unchanged={name: _stays(known.get(name)) for name in asked if name not in left},
        )


def _stays(state: DeploymentState | None) -> str:
    """Say why a device does not leave."""
    if state is None:
        return "it is not in the rollout"
    return _HAS_ORDER if state in ORDERED_DEPLOYMENTS else _ENDED


def _open(transaction: Transaction, rollout: str) -> RolloutRow:
    """Return a rollout that has not ended, locked.

    Raises:
        UnknownRolloutError: No such rollout.
        ConflictError: An earlier order about it is still being carried out.
        IllegalTransitionError: It has ended.
    """
    row = rollouts.get(transaction, rollout, lock=True)
    if row.state not in ACTIVE_ROLLOUTS:
        raise IllegalTransitionError(
            f"rollout {row.id} is {row.state}: its devices stay as they are",
            remedy="make a new one with `fleet rollout create`",
        )
    rollout_checks.check_settled(transaction, row.id)
    return row


def _check_own(row: RolloutRow) -> None:
    """Refuse a rollout whose devices are those of another one.

    Raises:
        ConflictError: It follows another one, or another one takes its devices.
    """
    if row.origin is not None:
        raise ConflictError(
            f"rollout {row.id} has the devices of rollout {row.origin}: no other joins it",
            remedy="make a new one with `fleet rollout create`",
        )
    if row.superseded_by is not None:
        raise ConflictError(
            f"rollout {row.superseded_by} takes the devices of rollout {row.id}",
            remedy=f"add them there: `fleet rollout add {row.superseded_by}`",
        )


def _names(devices: Sequence[str]) -> list[str]:
    """Return what may be names of devices, sorted, each once."""
    return sorted({device for device in devices if NAME_PATTERN.fullmatch(device)})


def _check_named(devices: Sequence[str], *, or_selector: str | None = None) -> None:
    """Refuse a request that names no device, too many, or devices in two ways.

    Raises:
        InvalidRequestError: It does.
    """
    if bool(devices) == (or_selector is not None):
        raise InvalidRequestError(
            "name devices or give a selector, one of the two" if devices else "no device is named",
            remedy="give the names of devices, or --selector with `fleet rollout add`",
        )
    if len(devices) > MAX_NAMED:
        raise InvalidRequestError(
            f"{len(devices)} devices are more than {MAX_NAMED}", remedy="name fewer at once"
        )
