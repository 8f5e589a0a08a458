"""What a new rollout is: decided by reading alone, and saved in a short transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.gates.control import control_group
from controller.domain.rollout_policy import StageSpec
from controller.domain.starting_order import position
from controller.errors import InvalidRequestError
from controller.rollout_schemas import RolloutRequest
from controller.services import follow_ups, rollout_checks
from controller.services.preflight import Preflight
from controller.services.rollout_checks import IsListed
from controller.store import device_facts, free_devices, releases, rollouts
from controller.store.database import Transaction
from controller.store.groups import read_selector
from controller.store.rollouts import NewRollout
from controller.store.tables import ReleaseRow

MAX_DEVICES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A new rollout, and what becomes of its devices."""

    new: NewRollout
    devices: list[str]
    unfit: dict[str, str]
    """Devices that cannot take its release, and why."""


class Making:
    """Makes rollouts.

    Args:
        preflight: Knows which devices cannot take a release.
        is_listed: Tells whether devices take a release, by its name, version and digest.
    """

    def __init__(self, preflight: Preflight, is_listed: IsListed) -> None:
        self._preflight = preflight
        self._is_listed = is_listed

    def decide(
        self,
        transaction: Transaction,
        request: RolloutRequest,
        stages: Sequence[StageSpec],
        gates: Sequence[str],
        *,
        now_s: float,
    ) -> Decided:
        """Decide which devices a new rollout has; this only reads.

        Args:
            transaction: The transaction.
            request: The release, the selector, the stages and the limits.
            stages: The stages, as they were checked.
            gates: The gates, as they are shown.
            now_s: Wall time.

        Raises:
            FleetError: What `controller.services.rollouts.Rollouts.create` is refused for.
        """
        if request.id is not None:
            rollout_checks.check_id(transaction, request.id)
        release, devices, unfit = self._to_take_in(transaction, request, now_s=now_s)
        rollout_checks.check_growing(stages, len(devices))
        rollout_checks.check_gates(request, len(devices))
        new = NewRollout(
            id=request.id or follow_ups.new_id(),
            release=release.digest,
            model=release.name,
            selector=request.selector,
            limits=rollout_checks.limits(request),
            stages=tuple(stages),
            gates=tuple(gates),
            created_at_s=now_s,
        )
        if gates:
            profiles = device_facts.profile_names(transaction, devices)
            places = {device: position(new.id, device) for device in devices}
            control = control_group(places, profiles, request.control_percent)
            new = replace(new, control=control)
        return Decided(new=new, devices=devices, unfit=unfit)

    def save(self, transaction: Transaction, request: RolloutRequest, found: Decided) -> NewRollout:
        """Save a new rollout.

        Args:
            transaction: The transaction.
            request: What it was decided by.
            found: What was decided.

        Returns:
            The rollout.

        Raises:
            IllegalTransitionError: Its release has been revoked meanwhile.
        """
        releases.get_published(transaction, request.release)
        new, unfit = found.new, found.unfit
        rollouts.begin(transaction, new, found.devices)
        if request.unfit == "exclude":
            rollouts.leave_out(transaction, new.id, new.model, unfit, now_s=new.created_at_s)
        elif unfit:
            reason = rollouts.named(list(unfit), "tried although they cannot take it")
            rollouts.log(transaction, new.id, action="unfit", reason=reason, now_s=new.created_at_s)
        return new

    def _to_take_in(
        self, transaction: Transaction, request: RolloutRequest, *, now_s: float
    ) -> tuple[ReleaseRow, list[str], dict[str, str]]:
        """Return the release of a new rollout, the devices that it is for, and who cannot take it.

        Raises:
            UnknownReleaseError: No such release.
            SelectorError: The selector cannot be read.
            ConflictError: The release was revoked or is on no list, a device takes part in another
                rollout, or another one of the model is being made.
            InvalidRequestError: No device matches.
            UnfitError: Devices cannot take the release, and the operator has not said what becomes
                of them; or they are to be left out, and none is left.
        """
        selector = read_selector(transaction, request.selector, now_s=now_s)
        release = releases.get_published(transaction, request.release)
        model = release.name
        rollout_checks.check_listed(release, self._is_listed)
        rollout_checks.check_not_making(transaction, model)
        devices = free_devices.newcomers(transaction, "", model, selector, limit=MAX_DEVICES)
        follow_ups.refuse_busy(free_devices.busy(transaction, model, selector))
        if not devices:
            raise InvalidRequestError(
                rollout_checks.no_device(request.selector), remedy="list the devices, or enrol one"
            )
        unfit = self._preflight.unfit(transaction, release, devices, selector)
        rollout_checks.check_unfit(request, unfit, len(devices))
        if request.unfit == "exclude":
            devices = [device for device in devices if device not in unfit]
        return release, devices, unfit
