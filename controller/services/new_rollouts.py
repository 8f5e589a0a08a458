"""What a new rollout is: decided by reading alone, and saved in a short transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.gates.control import held_out
from controller.domain.selectors import Selector
from controller.domain.stages import resolved
from controller.domain.starting_order import places
from controller.domain.supersession import Met
from controller.errors import InvalidRequestError
from controller.rollout_schemas import RolloutRequest
from controller.services import (
    follow_ups,
    rollout_checks,
    shadow_checks,
    stage_checks,
    supersession,
)
from controller.services.preflight import Preflight
from controller.services.rollout_checks import IsListed
from controller.store import (
    device_facts,
    free_devices,
    models,
    new_rollouts,
    penalties,
    releases,
    rollout_log,
    starting_orders,
    taking_in,
)
from controller.store.database import Transaction
from controller.store.groups import read_selector
from controller.store.new_deployments import Intake, intake
from controller.store.new_rollouts import NewRollout
from controller.store.release_tables import ReleaseRow

MAX_DEVICES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A new rollout, and what becomes of its devices."""

    new: NewRollout
    intake: Intake
    """Its devices."""

    unfit: dict[str, str]
    """Devices that cannot take its release, and why."""

    met: list[Met]
    """Out of which others it takes devices."""


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
        *,
        gates: Sequence[str],
        stage_gates: Mapping[int, tuple[str, ...]],
        now_s: float,
    ) -> Decided:
        """Decide which devices a new rollout has; this only reads.

        Args:
            transaction: The transaction.
            request: The release, the selector, the stages and the limits, as they were checked.
            gates: The gates, as they are shown.
            stage_gates: Those of a stage alone, by its number.
            now_s: Wall time.

        Raises:
            FleetError: What `controller.services.rollouts.Rollouts.create` is refused for.
        """
        if request.id is not None:
            rollout_checks.check_id(transaction, request.id)
        selector = read_selector(transaction, request.selector, now_s=now_s)
        release, devices, met = self._to_take_in(transaction, request, selector)
        unfit = self._preflight.unfit(
            transaction, release, devices, is_windowed=bool(request.windows)
        )
        unfit = {device: unfit[device] for device in devices if device in unfit}
        rollout_checks.check_unfit(request, unfit, len(devices))
        if request.unfit == "exclude":
            devices = [device for device in devices if device not in unfit]
        chosen = stage_checks.wanted_selectors(request)
        order = starting_orders.chosen(transaction, chosen, request.spread, devices, now_s=now_s)
        specs = stage_checks.specs(request.stages, order, devices)
        stage_checks.check_chosen(request, order, devices)
        rollout_checks.check_growing(specs, len(devices))
        if any(spec.shadow for spec in specs):
            shadow_checks.check_selector(transaction, request)
            facts = device_facts.of_devices(transaction, devices)
            shadow_checks.check_devices(specs, order, release.name, release.digest, facts)
        new = NewRollout(
            id=request.id or follow_ups.new_id(),
            release=release.digest,
            model=release.name,
            selector=request.selector,
            limits=rollout_checks.limits(request),
            stages=specs,
            gates=tuple(gates),
            stage_gates=stage_gates,
            spread=request.spread,
            rate=stage_checks.start_rate(request.rate),
            created_at_s=now_s,
            on_halt=request.on_halt,
            priority=request.priority,
            windows=tuple(request.windows),
        )
        placed = places(order, new.id, devices)
        if (gates or stage_gates) and request.control_percent > 0.0:
            profiles = device_facts.profile_names(transaction, devices)
            served = models.served(transaction, release.name, devices)
            percent = request.control_percent
            running = {one for one, digest in served.items() if digest == release.digest}
            control, kinds = held_out(placed, profiles, percent, running=running)
            new = replace(new, control=control, profiles=kinds, control_percent=percent)
        in_full = resolved(specs, placed, new.profiles, new.control)
        stage_checks.check_gates(request, in_full, order, devices)
        stage_checks.check_older(request, is_first=releases.is_first(transaction, release))
        found = intake(placed, control=new.control)
        return Decided(new=new, intake=found, unfit=unfit, met=met)

    def save(self, transaction: Transaction, request: RolloutRequest, found: Decided) -> NewRollout:
        """Save a new rollout.

        Devices that have started in another one since it was decided stay there.

        Args:
            transaction: The transaction.
            request: What it was decided by.
            found: What was decided.

        Returns:
            The rollout.

        Raises:
            IllegalTransitionError: Its release has been revoked meanwhile.
            ConflictError: All devices have started in another rollout meanwhile.
        """
        releases.get_published(transaction, request.release)
        met = supersession.still(transaction, found.met)
        new, devices, unfit = found.new, found.intake, found.unfit
        stays = frozenset(device for each in met for device in each.stays)
        if stays:
            placed = {name: place for name, place in devices.placed.items() if name not in stays}
            new = replace(new, control=new.control.difference(stays))
            devices = intake(placed, control=new.control)
            unfit = {device: why for device, why in unfit.items() if device not in stays}
        supersession.refuse_started(met, devices.placed)
        now_s = new.created_at_s
        supersession.take(transaction, new.id, met, devices.placed, now_s=now_s)
        new_rollouts.begin(transaction, new, devices)
        supersession.tell(transaction, new.id, met, now_s=now_s)
        if request.unfit == "exclude":
            taking_in.leave_out(transaction, new.id, new.model, unfit, now_s=now_s)
        elif unfit:
            reason = rollout_log.named(list(unfit), "tried although they cannot take it")
            rollout_log.log(transaction, new.id, action="unfit", reason=reason, now_s=now_s)
        return new

    def _to_take_in(
        self, transaction: Transaction, request: RolloutRequest, selector: Selector
    ) -> tuple[ReleaseRow, list[str], list[Met]]:
        """Return the release of a new rollout, its devices, and out of which others it takes some.

        Raises:
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked or is on no list, a device takes part in another
                rollout, or another one of the model is being made.
            InvalidRequestError: No device matches.
        """
        release = releases.get_published(transaction, request.release)
        model = release.name
        rollout_checks.check_listed(release, self._is_listed)
        rollout_checks.check_not_making(transaction, model)
        met = supersession.meeting(transaction, model, selector)
        supersession.refuse(met, request)
        devices = free_devices.newcomers(transaction, "", model, selector, limit=MAX_DEVICES)
        moving = supersession.movable(met)
        held_out = penalties.held_out_among(transaction, moving)
        devices = sorted([*devices, *(each for each in moving if each not in held_out)])
        supersession.refuse_started(met, devices)
        if not devices:
            raise InvalidRequestError(
                rollout_checks.no_device(request.selector), remedy="list the devices, or enrol one"
            )
        return release, devices, met
