"""Requests about rollouts."""

from __future__ import annotations

from typing import Final

from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order
from controller.client.rollout_files import check_stages
from controller.domain.states import DeploymentState
from controller.rehearsal_schemas import Rehearsal, RehearsalRequest
from controller.rollout_control_schemas import JoinRequest, LeaveRequest, MembersChange
from controller.rollout_plan_schemas import RolloutPlan
from controller.rollout_schemas import (
    DevicePart,
    PossibleFollowUps,
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutGates,
    RolloutRequest,
)
from controller.schemas import Request

AT_ONCE: Final = 100
"""The controller counts the devices of each."""


class Rollouts(Resource):
    """Rollouts."""

    def list(
        self,
        *,
        state: str = "",
        model: str = "",
        release: str = "",
        sort: str = "",
        reverse: bool = False,
    ) -> Listing[Rollout]:
        """List rollouts, without their devices and logs.

        Args:
            state: Only those in this state.
            model: Only those of this model.
            release: Only those of this release, as `name:version` or digest.
            sort: `created`, `finished`, `id`, `model` or `state`; empty for `created`, the newest
                first.
            reverse: The other way round.
        """
        params = {"state": state, "model": model, "release": release}
        params |= order(sort, reverse=reverse)
        return Listing(self._api, "/v1/rollouts", Rollout, params, at_once=AT_ONCE)

    def get(
        self, rollout: str, *, limit: int | None = None, state: DeploymentState | str = ""
    ) -> Rollout:
        """Return a rollout with its devices and the reason of every decision.

        Args:
            rollout: Its identifier.
            limit: The greatest number of its devices; None for what the controller gives, 10,000.
            state: Only its devices in this state; empty for all.
        """
        params = {"limit": "" if limit is None else str(limit), "state": str(state)}
        given = {name: value for name, value in params.items() if value}
        return self._api.get(f"/v1/rollouts/{segment(rollout)}", Rollout, given)

    def gates(self, rollout: str) -> RolloutGates:
        """Return the gates of a rollout, with what each look at them has shown."""
        return self._api.get(f"/v1/rollouts/{segment(rollout)}/gates", RolloutGates)

    def follow_ups(self, rollout: str) -> PossibleFollowUps:
        """Return what a rollback and another try of a rollout would take now."""
        return self._api.get(f"/v1/rollouts/{segment(rollout)}/follow-ups", PossibleFollowUps)

    def part(self, rollout: str, device: str) -> DevicePart:
        """Return one device's part in a rollout, with what explains it."""
        return self._api.get(
            f"/v1/rollouts/{segment(rollout)}/devices/{segment(device)}", DevicePart
        )

    def create(self, request: RolloutRequest) -> Rollout:
        """Begin a rollout. With an `id` of yours in the request, a second one is refused.

        Args:
            request: The rollout; `rollout_file` and `rollout_request` of `controller.client` make
                it.

        Raises:
            ArgumentError: Its stages are no stages.
        """
        check_stages(request)
        return self._api.send("POST", "/v1/rollouts", Rollout, request)

    def plan(self, request: RolloutRequest, *, limit: int = 20) -> RolloutPlan:
        """Return what such a rollout would do; nothing is changed.

        Args:
            request: The rollout; `rollout_file` and `rollout_request` of `controller.client` make
                it.
            limit: How many devices are named in each place.

        Raises:
            ArgumentError: Its stages are no stages.
        """
        check_stages(request)
        return self._api.send("POST", f"/v1/rollouts/plan?limit={limit}", RolloutPlan, request)

    def rehearse(self, request: RehearsalRequest) -> Rehearsal:
        """Return what such a rollout would have done; nothing is changed.

        It takes up to a minute or so: give the client such a `timeout_s`.

        Raises:
            ArgumentError: Its stages are no stages.
        """
        check_stages(request.rollout)
        return self._api.send("POST", "/v1/rollouts/rehearse", Rehearsal, request)

    def pause(self, rollout: str) -> Rollout:
        """Start nothing until resumed."""
        return self._order(rollout, "pause")

    def resume(self, rollout: str) -> Rollout:
        """Go on; after a halt, without the devices that failed."""
        return self._order(rollout, "resume")

    def abort(self, rollout: str) -> Rollout:
        """End it; devices that failed or have not finished go back, unless it is a rollback."""
        return self._order(rollout, "abort")

    def approve(self, rollout: str) -> Rollout:
        """Let the next stage begin, or one go on despite gates or a shadow that hold."""
        return self._order(rollout, "approve")

    def add(self, rollout: str, request: JoinRequest) -> MembersChange:
        """Let devices join the tail of a rollout that goes on."""
        return self._api.send(
            "POST", f"/v1/rollouts/{segment(rollout)}/add", MembersChange, request
        )

    def exclude(self, rollout: str, request: LeaveRequest) -> MembersChange:
        """Take devices out of a rollout that have not started."""
        path = f"/v1/rollouts/{segment(rollout)}/exclude"
        return self._api.send("POST", path, MembersChange, request)

    def retry(self, rollout: str, request: RetryRequest) -> Rollout:
        """Bring the release to the devices that do not run it, in a rollout of its own."""
        return self._order(rollout, "retry", request)

    def roll_back(self, rollout: str, request: RollbackRequest) -> Rollout:
        """Bring the devices to what they had, or to a release, in a rollout of its own."""
        return self._order(rollout, "rollback", request)

    def _order(self, rollout: str, name: str, body: Request | None = None) -> Rollout:
        return self._api.send("POST", f"/v1/rollouts/{segment(rollout)}/{name}", Rollout, body)
