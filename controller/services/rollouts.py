"""Rollouts: the operator's orders, and what the operator sees.

Rules:
- An order that the state does not allow is refused, and changes nothing.
- A rollout is of one model, and a device takes part in one unfinished rollout of each at a time.
- Two people let a stage begin that needs approval: who made the rollout does not approve it.
- A rollout begins with devices that cannot take its release only if the operator says so.
"""

from __future__ import annotations

from controller.domain.paging import PageRequest, Part, cut
from controller.domain.rollout_policy import holding
from controller.domain.selectors import Selector
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DeploymentState,
    RolloutOrder,
    RolloutState,
)
from controller.domain.supersession import Met
from controller.errors import ConflictError, InvalidRequestError, OwnRolloutError
from controller.rollout_schemas import (
    DevicePart,
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutGates,
    RolloutRequest,
)
from controller.services import (
    follow_ups,
    rollout_checks,
    shown_gates,
    shown_rollouts,
    sorts,
    stage_checks,
    supersession,
)
from controller.services.director import Director
from controller.services.preflight import Preflight
from controller.services.rollout_checks import IsListed
from controller.services.shadow_checks import check_agreement
from controller.services.transfers import Transfers
from controller.store import (
    deployments,
    free_devices,
    listed_rollouts,
    releases,
    rollout_steps,
    rollouts,
    stages,
    starting_orders,
)
from controller.store.database import Database, Transaction
from controller.store.groups import read_selector
from controller.store.rollouts import NewRollout
from controller.store.tables import ReleaseRow, RolloutRow
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

MAX_DEVICES = 1_000_000


class Rollouts:
    """Carries out the operator's orders and shows rollouts.

    Args:
        database: The control state.
        director: Sends desired states to devices that go back.
        preflight: Knows which devices cannot take a release.
        transfers: The transfers that run.
        telemetry: What devices measured.
        clock: Wall time.
        is_listed: Tells whether devices take a release, by its name, version and digest.
    """

    def __init__(
        self,
        database: Database,
        director: Director,
        preflight: Preflight,
        transfers: Transfers,
        telemetry: TelemetryStore,
        clock: Clock,
        *,
        is_listed: IsListed,
    ) -> None:
        self._is_listed = is_listed
        self._database = database
        self._director = director
        self._preflight = preflight
        self._transfers = transfers
        self._telemetry = telemetry
        self._clock = clock

    def create(self, request: RolloutRequest) -> str:
        """Make a rollout.

        Args:
            request: The release, the selector, the stages and the limits.

        Returns:
            Its identifier.

        Raises:
            InvalidRequestError: Stages that make no sense, or a selector that no device matches.
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked or is on no list, or a device takes part in
                another rollout.
            UnfitError: Devices cannot take the release, and the operator has not said what becomes
                of them; or they are to be left out, and none is left.
        """
        stage_checks.check_stages(request)
        rollout_checks.check_windows(request)
        stage_gates = stage_checks.own_gates(self._telemetry, request)
        asked = rollout_checks.gate_texts(self._telemetry, request)
        check_agreement(self._database, self._telemetry, request)
        now_s = self._clock.now_s()
        # Most of the work is done before others have to wait. What has changed since counts.
        with self._database.reading() as transaction:
            selector = read_selector(transaction, request.selector, now_s=now_s)
            release, devices, _met = self._to_take_in(transaction, request, selector)
            unfit = self._preflight.unfit(
                transaction, release, devices, selector, is_windowed=bool(request.windows)
            )
        asked_before = frozenset(devices)
        with self._database.transaction() as transaction:
            if request.id is not None:
                rollout_checks.check_id(transaction, request.id)
            selector = read_selector(transaction, request.selector, now_s=now_s)
            release, devices, met = self._to_take_in(transaction, request, selector, lock=True)
            model = release.name
            late = [device for device in devices if device not in asked_before]
            unfit |= self._preflight.unfit(
                transaction, release, late, is_windowed=bool(request.windows)
            )
            unfit = {device: unfit[device] for device in devices if device in unfit}
            rollout_checks.check_unfit(request, unfit, len(devices))
            if request.unfit == "exclude":
                devices = [device for device in devices if device not in unfit]
            chosen = stage_checks.wanted_selectors(request)
            order = starting_orders.chosen(
                transaction, chosen, request.spread, devices, now_s=now_s
            )
            specs = stage_checks.specs(request.stages, order, devices)
            stage_checks.check_chosen(request, order, devices)
            rollout_checks.check_growing(specs, len(devices))
            stage_checks.check_gates(request, specs, order, devices)
            new = NewRollout(
                id=request.id or follow_ups.new_id(),
                release=release.digest,
                model=model,
                selector=request.selector,
                limits=rollout_checks.limits(request),
                stages=specs,
                gates=asked,
                stage_gates=stage_gates,
                order=order,
                spread=request.spread,
                rate=stage_checks.start_rate(request.rate),
                control_percent=request.control_percent if asked or stage_gates else 0.0,
                created_at_s=now_s,
                on_halt=request.on_halt,
                priority=request.priority,
                windows=tuple(request.windows),
            )
            supersession.take(transaction, new.id, met, devices, now_s=now_s)
            rollouts.begin(transaction, new, devices)
            supersession.tell(transaction, new.id, met, now_s=now_s)
            if request.unfit == "exclude":
                rollouts.leave_out(transaction, new.id, model, unfit, now_s=now_s)
            elif unfit:
                reason = rollouts.named(list(unfit), "tried although they cannot take it")
                rollouts.log(transaction, new.id, action="unfit", reason=reason, now_s=now_s)
        return new.id

    def _to_take_in(
        self,
        transaction: Transaction,
        request: RolloutRequest,
        selector: Selector,
        *,
        lock: bool = False,
    ) -> tuple[ReleaseRow, list[str], list[Met]]:
        """Return the release of a new rollout, its devices, and out of which others it takes some.

        Raises:
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked or is on no list, or a device takes part in
                another rollout.
            InvalidRequestError: No device matches.
        """
        release = releases.get_published(transaction, request.release)
        model = release.name
        rollout_checks.check_listed(release, self._is_listed)
        met = supersession.meeting(transaction, model, selector, lock=lock)
        supersession.refuse(met, request)
        devices = free_devices.newcomers(transaction, "", model, selector, limit=MAX_DEVICES)
        devices = sorted([*devices, *supersession.movable(met)])
        supersession.refuse_started(met, devices)
        if not devices:
            raise InvalidRequestError(
                rollout_checks.no_device(request.selector), remedy="list the devices, or enrol one"
            )
        return release, devices, met

    def gates(self, rollout: str) -> RolloutGates:
        """Return the gates of a rollout with what each look at them has shown.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            return shown_gates.whole(transaction, rollouts.get(transaction, rollout))

    def roll_back(self, rollout: str, request: RollbackRequest) -> str:
        """Bring the devices that a rollout touched to another release.

        Args:
            rollout: The rollout to undo; it is aborted if it has not ended.
            request: To which release.

        Returns:
            The identifier of the new rollout.

        Raises:
            UnknownRolloutError: No such rollout.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked or is of another model, no device can be rolled
                back, or one of them takes part in another rollout of the model.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            first = rollouts.get(transaction, rollout, lock=True)
            release = None
            if request.release is not None:
                release = releases.get_published(transaction, request.release)
            new, told = follow_ups.roll_back(transaction, first, release, now_s=now_s)
        self._director.publish(told)
        return new

    def retry(self, rollout: str, request: RetryRequest) -> str:
        """Bring the release of a rollout to the devices that do not run it.

        Args:
            rollout: The rollout.
            request: To which of them.

        Returns:
            The identifier of the new rollout.

        Raises:
            UnknownRolloutError: No such rollout.
            ConflictError: The release was revoked, no device is left, or one of them takes part in
                another rollout.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            first = rollouts.get(transaction, rollout, lock=True)
            return follow_ups.try_again(
                transaction, first, only_failed=request.only_failed, now_s=now_s
            )

    def get(self, rollout: str, *, limit: int) -> Rollout:
        """Return a rollout with its deployments and its log.

        Args:
            rollout: Its identifier.
            limit: The greatest number of deployments.

        Returns:
            The rollout.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            return shown_rollouts.whole(transaction, row, self._transfers, limit=limit)

    def part(self, rollout: str, device: str) -> DevicePart:
        """Return one device's part in a rollout.

        Args:
            rollout: Its identifier.
            device: The device.

        Raises:
            UnknownRolloutError: No such rollout.
            UnknownDeviceError: The device has no part in it.
        """
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            return shown_rollouts.of_device(transaction, row, device, self._transfers)

    def listed(
        self,
        page: PageRequest,
        *,
        state: RolloutState | None = None,
        model: str = "",
        release: str = "",
    ) -> Part[Rollout]:
        """Return a part of the rollouts, without their deployments and logs.

        Args:
            page: Which part.
            state: Only those in this state; None for all.
            model: Only those of this model; empty for all.
            release: Only those of this release, as `name:version` or digest; empty for all.

        Raises:
            UnknownReleaseError: There is no such release.
        """
        with self._database.reading() as transaction:
            rows = listed_rollouts.listed(
                transaction, page, state=state, model=model, release=release
            )
            shown = [shown_rollouts.outline(transaction, row) for row in rows]
        return cut(shown, page, sorts.ROLLOUTS)

    def pause(self, rollout: str) -> None:
        """Pause a rollout: no further device starts until it is resumed.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It does not run.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            rollouts.move(transaction, row, RolloutOrder.PAUSE)
            reason = "paused by the operator"
            rollouts.log(transaction, row.id, action=RolloutOrder.PAUSE, reason=reason, now_s=now_s)

    def resume(self, rollout: str) -> None:
        """Go on with a paused rollout, or with a halted one without the devices that failed.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It is neither paused nor halted, or its release was revoked.
            ConflictError: It was halted, and has been rolled back since, or a device takes part in
                another rollout.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if row.state == RolloutState.HALTED:
                releases.get_published(transaction, row.release)
                follow_ups.refuse_rolled_back(transaction, row.id)
                devices, _revoked = rollout_steps.to_reopen(transaction, row.id)
                finished = deployments.in_state(transaction, row.id, DeploymentState.SUCCEEDED)
                taken = free_devices.busy_among(transaction, row.model, [*devices, *finished])
                follow_ups.refuse_busy(taken)
            rollout_steps.resume(transaction, row, now_s=now_s)

    def abort(self, rollout: str) -> None:
        """End a rollout; devices that failed or have not finished go back.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended already.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            back = rollout_steps.end(
                transaction, row, RolloutOrder.ABORT, reason="aborted by the operator", now_s=now_s
            )
        self._director.publish(back)

    def approve(self, rollout: str, by: str) -> None:
        """Let a stage end despite gates that hold it, or let the next stage begin.

        Args:
            rollout: Its identifier.
            by: The API token of who approves.

        Raises:
            UnknownRolloutError: No such rollout.
            OwnRolloutError: That token made the rollout, and it is to be approved by another.
            ConflictError: Nothing waits for approval, or for gates.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            last = row.stage == len(stages.of_rollout(transaction, rollout))
            view = rollouts.view(transaction, row, with_candidates=False)
            complete = view.stage_complete_at_s is not None and view.finished > 0
            if complete and row.state in ACTIVE_ROLLOUTS and (held := holding(view)):
                if view.approval:
                    _refuse_own(row, by)
                rollouts.pass_by_hand(transaction, row, held, now_s=now_s)
                return
            if not view.approval or last or not complete or row.state not in ACTIVE_ROLLOUTS:
                raise ConflictError(
                    f"rollout {row.id} has no stage that waits for approval",
                    remedy=f"`fleet rollout show {row.id}` says what it waits for",
                )
            _refuse_own(row, by)
            rollouts.approve(transaction, row, now_s=now_s)


def _refuse_own(row: RolloutRow, by: str) -> None:
    """Refuse an approval by the token that made the rollout.

    Raises:
        OwnRolloutError: It did.
    """
    if row.created_by and row.created_by == by:
        raise OwnRolloutError(
            f"rollout {row.id} was made with the API token {by}: another one must approve it",
            remedy="use another token; an admin makes one with "
            "`fleet access create NAME --role approver`",
        )
