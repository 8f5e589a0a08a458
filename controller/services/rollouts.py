"""Rollouts: the operator's orders, and what the operator sees.

Rules:
- An order that the state does not allow is refused, and changes nothing.
- A rollout is of one model, and a device takes part in one unfinished rollout of each at a time.
- A rollout begins with devices that cannot take its release only if the operator says so.
"""

from __future__ import annotations

from controller.domain.paging import PageRequest, Part, cut
from controller.domain.states import DeploymentState, RolloutOrder, RolloutState
from controller.rollout_schemas import (
    DevicePart,
    PossibleFollowUps,
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutGates,
    RolloutRequest,
)
from controller.services import (
    approvals,
    follow_ups,
    possible_follow_ups,
    rollout_checks,
    shown_gates,
    shown_rollouts,
    sorts,
    stage_checks,
)
from controller.services.director import Director
from controller.services.follow_ups import FollowUp
from controller.services.new_rollouts import Decided, Making
from controller.services.preflight import Preflight
from controller.services.rollout_checks import IsListed
from controller.services.rollout_work import RolloutWork
from controller.services.shadow_checks import check_agreement
from controller.services.transfers import Transfers
from controller.store import (
    deployments,
    free_devices,
    listed_rollouts,
    releases,
    reopening,
    rollout_log,
    rollout_steps,
    rollouts,
)
from controller.store.database import Database, Transaction
from controller.store.new_rollouts import NewRollout
from controller.store.reopening import Reopening
from controller.store.rollout_tables import RolloutRow
from telemetry.server.store import TelemetryStore
from wire.clock import Clock


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
        self._database = database
        self._director = director
        self._work = RolloutWork(database, director, clock)
        self._making = Making(preflight, is_listed)
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
        rollout_checks.check_control(request)
        stage_gates = stage_checks.own_gates(self._telemetry, request)
        asked = rollout_checks.gate_texts(self._telemetry, request)
        check_agreement(self._database, self._telemetry, request)
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()

        def decide(transaction: Transaction) -> Decided:
            return self._making.decide(
                transaction, request, gates=asked, stage_gates=stage_gates, now_s=now_s
            )

        def save(transaction: Transaction, found: Decided) -> NewRollout:
            return self._making.save(transaction, request, found)

        new = self._work.order(
            lambda transaction: releases.get_published(transaction, request.release).name,
            decide,
            save,
        )
        self._work.answer(new.model, since_s=began_s)
        return new.id

    def gates(self, rollout: str) -> RolloutGates:
        """Return the gates of a rollout with what each look at them has shown.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            return shown_gates.whole(transaction, rollouts.get(transaction, rollout))

    def follow_ups(self, rollout: str) -> PossibleFollowUps:
        """Return which rollouts could follow a rollout now.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            return possible_follow_ups.possible(transaction, rollouts.get(transaction, rollout))

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
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()
        model = self._ended_of(rollout)

        def decide(transaction: Transaction) -> FollowUp:
            rollout_checks.check_not_making(transaction, model, but=rollout)
            release = None
            if request.release is not None:
                release = releases.get_published(transaction, request.release)
            return follow_ups.rollback(transaction, rollouts.get(transaction, rollout), release)

        def save(transaction: Transaction, found: FollowUp) -> tuple[str, list[str]]:
            first = rollouts.get(transaction, rollout, lock=True)
            keep_pace = request.keep_pace
            return follow_ups.roll_back(transaction, first, found, keep_pace=keep_pace, now_s=now_s)

        new, told = self._work.order(lambda _: model, decide, save)
        self._director.publish(told)
        self._work.answer(model, since_s=began_s)
        return new

    def _ended_of(self, rollout: str) -> str:
        """Return the model of a rollout; what has ended of it has no device any more.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            model = rollouts.get(transaction, rollout).model
        self._work.end_of(model)
        return model

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
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()
        model = self._ended_of(rollout)

        def decide(transaction: Transaction) -> FollowUp:
            rollout_checks.check_not_making(transaction, model)
            rollout_checks.check_settled(transaction, rollout)
            first = rollouts.get(transaction, rollout)
            return follow_ups.another_try(transaction, first, only_failed=request.only_failed)

        def save(transaction: Transaction, found: FollowUp) -> str:
            first = rollouts.get(transaction, rollout, lock=True)
            return follow_ups.try_again(transaction, first, found, now_s=now_s)

        new = self._work.order(lambda _: model, decide, save)
        self._work.answer(model, since_s=began_s)
        return new

    def get(self, rollout: str, *, limit: int, state: DeploymentState | None = None) -> Rollout:
        """Return a rollout with its deployments and its log.

        Args:
            rollout: Its identifier.
            limit: The greatest number of deployments.
            state: Only the deployments that are shown in this state; None for all.

        Returns:
            The rollout.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            return shown_rollouts.whole(transaction, row, self._transfers, limit=limit, state=state)

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
            rollout_log.log(
                transaction, row.id, action=RolloutOrder.PAUSE, reason=reason, now_s=now_s
            )

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
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()
        model = self._ended_of(rollout)

        def decide(transaction: Transaction) -> Reopening | None:
            row = rollouts.get(transaction, rollout)
            if row.state != RolloutState.HALTED:
                return None
            rollout_checks.check_not_making(transaction, model)
            rollout_checks.check_settled(transaction, rollout)
            releases.get_published(transaction, row.release)
            follow_ups.refuse_rolled_back(transaction, row.id)
            found = reopening.to_reopen(transaction, row)
            _refuse_taken(transaction, row, found)
            return found

        def save(transaction: Transaction, found: Reopening | None) -> None:
            row = rollouts.get(transaction, rollout, lock=True)
            if (found is None) == (row.state == RolloutState.HALTED):
                found = decide(transaction)
            elif found is not None:  # a device may have been added to another one meanwhile
                _refuse_taken(transaction, row, found)
            reopening.resume(transaction, row, found=found, now_s=now_s)

        self._work.order(lambda _: model, decide, save)
        self._work.answer(model, since_s=began_s)

    def abort(self, rollout: str) -> None:
        """End a rollout; devices that failed or have not finished go back, unless it is a rollback.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended already.
        """
        now_s, began_s = self._clock.now_s(), self._clock.monotonic_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            back = rollout_steps.end(
                transaction, row, RolloutOrder.ABORT, reason="aborted by the operator", now_s=now_s
            )
            model = row.model
        self._director.publish(back)
        self._work.answer(model, since_s=began_s)

    def approve(self, rollout: str, by: str) -> None:
        """Let a stage begin without its shadow, or end despite gates, or let the next one begin.

        Args:
            rollout: Its identifier.
            by: The API token of who approves.

        Raises:
            UnknownRolloutError: No such rollout.
            OwnRolloutError: That token made the rollout, and it is to be approved by another.
            ConflictError: Nothing waits for approval, for a shadow, or for gates.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            approvals.approve(transaction, row, by, now_s=now_s)


def _refuse_taken(transaction: Transaction, row: RolloutRow, found: Reopening) -> None:
    """Refuse to go on with a rollout some of whose devices another one has now.

    Raises:
        ConflictError: It has.
    """
    finished = deployments.in_state(transaction, row.id, DeploymentState.SUCCEEDED)
    follow_ups.refuse_busy(
        free_devices.busy_among(transaction, row.model, [*found.again, *finished])
    )
