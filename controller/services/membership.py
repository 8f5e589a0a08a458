"""Devices that join a rollout that goes on, and devices that leave it.

Rules:
- Who joins starts after all others: the stages before the last do not grow.
- Who has started is not taken out: what has its order finishes, and counts.
- Each device that does not join or leave is told with the reason.
- Very many join and leave in several transactions, as `controller.services.rollout_work` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Final

from controller.domain.gates.control import LEAST_OF_ROLLOUT
from controller.domain.gates.states import LEAST_DEVICES, LEAST_OF_STRATUM
from controller.domain.states import ACTIVE_ROLLOUTS, ORDERED_DEPLOYMENTS, DeploymentState
from controller.domain.wording import counted
from controller.errors import ConflictError, IllegalTransitionError, InvalidRequestError
from controller.rollout_control_schemas import MAX_NAMED, JoinRequest, LeaveRequest, MembersChange
from controller.services import rollout_checks
from controller.services.director import Director
from controller.services.preflight import Preflight
from controller.services.rollout_work import RolloutWork
from controller.store import (
    control_group,
    deployments,
    devices,
    free_devices,
    members,
    penalties,
    releases,
    rollouts,
)
from controller.store.database import Database, Transaction
from controller.store.groups import read_selector
from controller.store.members import Joining
from controller.store.rollout_tables import RolloutRow
from wire.clock import Clock
from wire.profile import NAME_PATTERN

_HAS_ORDER: Final = "it has its order: it finishes, and counts; an abort would send it back"
_NOT_ENROLLED: Final = "no device of that name is enrolled"
_HELD_OUT: Final = "it is held out of rollouts: {}; `fleet device restore` ends that"
_LEFT: Final = "it left the rollout, and joins no more; when that has ended, a new one takes it"
_ENDED: Final = "it has finished"
_OUT: Final = "it was taken out by the operator, and does not come back; a new rollout can take it"
_GONE: Final = "it is gone, or joined this or another rollout just now"


class Membership:
    """Lets devices join and leave rollouts.

    Args:
        database: The control state.
        director: Sends desired states to devices that go back.
        preflight: Knows which devices cannot take a release.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, director: Director, preflight: Preflight, clock: Clock
    ) -> None:
        self._database = database
        self._work = RolloutWork(database, director, clock)
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
            InvalidRequestError: No device is named, both devices and a selector, or a selector
                that no device matches.
            SelectorError: The selector cannot be read.
            FleetError: The files of the release cannot be read.
        """
        _check_named(request.devices, or_selector=request.selector)
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()

        def decide(transaction: Transaction) -> tuple[Joining, dict[str, str]]:
            row = rollouts.get(transaction, rollout)
            _check_open(transaction, row)
            _check_own(row)
            joining, unchanged = self._joining(transaction, row, request, now_s=now_s)
            return members.at_tail(transaction, row, joining), unchanged

        def save(transaction: Transaction, found: tuple[Joining, dict[str, str]]) -> MembersChange:
            joining, unchanged = found
            row = rollouts.get(transaction, rollout, lock=True)
            _check_open(transaction, row)
            _check_own(row)
            releases.get_published(transaction, row.release)
            placed = joining.intake.placed
            if not placed:
                return MembersChange(rollout=rollout, changed=[], unchanged=unchanged)
            lost = dict.fromkeys(members.join(transaction, row, joining, now_s=now_s), _GONE)
            return MembersChange(
                rollout=rollout,
                changed=[device for device in placed if device not in lost],
                unchanged=unchanged | lost,
                warnings=_compared(joining),
            )

        with self._database.reading() as transaction:
            model = rollouts.get(transaction, rollout).model
        change = self._work.order(lambda _: model, decide, save)
        if change.changed:
            self._work.answer(model, since_s=began_s)
        return change

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
            InvalidRequestError: No device is named, both devices and a selector, or a selector
                that no device matches.
            SelectorError: The selector cannot be read.
        """
        _check_named(request.devices, or_selector=request.selector)
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()

        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            _check_open(transaction, row)
            model = row.model
            pending = deployments.in_state(transaction, rollout, DeploymentState.PENDING)
            asked = frozenset(request.devices)
            if request.selector is not None:
                selector = read_selector(transaction, request.selector, now_s=now_s)
                asked = devices.chosen(transaction, selector)
                _check_any(request.selector, asked)
            leaving = sorted(asked.intersection(pending))
            rest = _names(asked.difference(pending))
            known, out = members.among(transaction, rollout, rest)
            others = sorted(known if request.devices == [] else asked.difference(pending))
            warnings = _control_left(transaction, row, leaving)
            if leaving:
                members.leave(transaction, row, leaving, now_s=now_s)
        if leaving:
            self._work.answer(model, since_s=began_s)
        return MembersChange(
            rollout=rollout,
            changed=leaving,
            unchanged={name: _OUT if name in out else _stays(known.get(name)) for name in others},
            warnings=warnings,
        )

    def _joining(
        self, transaction: Transaction, row: RolloutRow, request: JoinRequest, *, now_s: float
    ) -> tuple[list[str], dict[str, str]]:
        """Return which devices join a rollout, and why others do not; this only reads."""
        release = releases.get_published(transaction, row.release)
        if request.selector is not None:
            selector = read_selector(transaction, request.selector, now_s=now_s)
            asked = sorted(devices.chosen(transaction, selector))
            _check_any(request.selector, asked)
            unchanged = dict.fromkeys(asked, _NOT_ENROLLED)
        else:
            asked = _names(request.devices)
            unchanged = dict.fromkeys(request.devices, _NOT_ENROLLED)
        there, excluded = members.among(transaction, row.id, asked)
        held_out = penalties.held_out_among(transaction, asked)
        unchanged |= {device: _HELD_OUT.format(row.reason) for device, row in held_out.items()}
        unchanged |= {
            device: _LEFT if state == DeploymentState.CANCELLED else "it is in the rollout already"
            for device, state in there.items()
        }
        unchanged |= dict.fromkeys(excluded, _OUT)
        taken = free_devices.busy_among(transaction, row.model, asked, but=row.id)
        unchanged |= {
            device: f"rollout {other} has it, and has not ended or not yet let it go"
            for device, other in taken.items()
        }
        free = members.joinable(transaction, row.id, row.model, asked)
        unfit = self._preflight.unfit(transaction, release, free, is_windowed=bool(row.windows))
        unchanged |= {device: f"it would refuse: {why}" for device, why in unfit.items()}
        joining = [device for device in free if device not in unfit]
        for device in joining:
            del unchanged[device]
        return joining, unchanged


def _compared(joining: Joining) -> list[str]:
    """Say which of the devices that join keep the old release, and that gates compare few."""
    found = []
    if joining.is_after_gates:
        found.append("the gates have passed and are asked no more: they get the release without")
    if joining.control:
        keep = "keeps" if len(joining.control) == 1 else "keep"
        group = counted(len(joining.control))
        found.append(f"{group} of them {keep} the old release until the gates have passed")
    if joining.incomparable:
        found.append(
            f"no gate counts {counted(joining.incomparable)} of them: those that are added are "
            f"compared with each other alone, within a profile; that takes {LEAST_OF_ROLLOUT} "
            f"that are added together, and {2 * LEAST_OF_STRATUM} of a profile"
        )
    return found


def _control_left(transaction: Transaction, row: RolloutRow, leaving: Sequence[str]) -> list[str]:
    """Say that too few devices are left to compare with, if those that leave make them so."""
    if row.control_released:
        return []
    lost = control_group.count_among(transaction, row.id, leaving)
    left = control_group.count(transaction, row.id) - lost
    if not lost or left >= LEAST_DEVICES:
        return []
    taken = f"{counted(lost)} {'is' if lost == 1 else 'are'} taken out of the control group"
    rest = f"{left} remain{'s' if left == 1 else ''}"
    warning = (
        f"{taken}, and {rest}: gates take {LEAST_DEVICES}, so they cannot pass, and hold until "
        f"somebody approves (`fleet rollout approve {row.id}`)"
    )
    return [warning]


def _stays(state: str | None) -> str:
    """Say why a device does not leave."""
    if state is None:
        return "it is not in the rollout"
    return _HAS_ORDER if state in ORDERED_DEPLOYMENTS else _ENDED


def _check_open(transaction: Transaction, row: RolloutRow) -> None:
    """Refuse a rollout that has ended, or about which an earlier order is still carried out.

    Raises:
        ConflictError: It is.
        IllegalTransitionError: It has ended.
    """
    if row.state not in ACTIVE_ROLLOUTS:
        raise IllegalTransitionError(
            f"rollout {row.id} is {row.state}: its devices stay as they are",
            remedy="make a new one with `fleet rollout create`",
        )
    rollout_checks.check_settled(transaction, row.id)


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


def _names(asked: Iterable[str]) -> list[str]:
    """Return what may be names of devices, sorted, each once."""
    return sorted({device for device in asked if NAME_PATTERN.fullmatch(device)})


def _check_any(selector: str, found: Sized) -> None:
    """Refuse a selector that no device matches.

    Raises:
        InvalidRequestError: None does.
    """
    if not found:
        raise InvalidRequestError(
            rollout_checks.no_device(selector),
            remedy="`fleet device list --selector` shows which devices match one",
        )


def _check_named(asked: Sequence[str], *, or_selector: str | None) -> None:
    """Refuse a request that names no device, too many, or devices in two ways.

    Raises:
        InvalidRequestError: It does.
    """
    if bool(asked) == (or_selector is not None):
        raise InvalidRequestError(
            "name devices or give a selector, one of the two" if asked else "no device is named",
            remedy="give the names of devices, or --selector",
        )
    if len(asked) > MAX_NAMED:
        raise InvalidRequestError(
            f"{len(asked)} devices are more than {MAX_NAMED}", remedy="name fewer at once"
        )
