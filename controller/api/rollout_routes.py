"""The routes of rollouts; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.pages import RolloutPage
from controller.api.services import AskedBy, Services, router
from controller.domain.states import DeploymentState, RolloutState
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
from controller.services.rollouts import Rollouts

MAX_LISTED = 100_000
DEFAULT_LISTED = 10_000
DEFAULT_NAMED = 20

LimitParameter = Annotated[int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")]

rollout_routes: APIRouter = router("/v1/rollouts", "rollouts")


@rollout_routes.post("", status_code=201)
def create(services: Services, request: RolloutRequest) -> Rollout:
    """Bring a release to the devices that match a selector, stage by stage.

    Of very many devices `preparing` are still to be taken in; none starts before all of them are.
    """
    return services.rollouts.get(services.rollouts.create(request), limit=DEFAULT_LISTED)


@rollout_routes.post("/plan")
def plan_rollout(
    services: Services,
    request: RolloutRequest,
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="How many devices are named in each place.")
    ] = DEFAULT_NAMED,
) -> RolloutPlan:
    """Tell what such a rollout would do, and why it would not begin. Changes nothing."""
    return services.rollout_plans.plan(request, limit=limit)


@rollout_routes.get("")
def list_rollouts(
    services: Services,
    page: RolloutPage,
    state: RolloutState | None = None,
    model: Annotated[str, Query(description="Only of this model.")] = "",
    release: Annotated[str, Query(description="Only of this one: name:version or digest.")] = "",
) -> list[Rollout]:
    """List rollouts without their deployments and logs, the newest first."""
    found = services.rollouts.listed(page.request, state=state, model=model, release=release)
    return page.answer(found)


@rollout_routes.get("/{rollout}")
def get_rollout(
    services: Services,
    rollout: str,
    limit: LimitParameter = DEFAULT_LISTED,
    state: Annotated[
        DeploymentState | None, Query(description="Only its devices in this state.")
    ] = None,
) -> Rollout:
    """Return a rollout with its deployments and the reason of every decision."""
    return services.rollouts.get(rollout, limit=limit, state=state)


@rollout_routes.get("/{rollout}/gates")
def get_gates(services: Services, rollout: str) -> RolloutGates:
    """Return the gates of a rollout, with what each look at them has shown."""
    return services.rollouts.gates(rollout)


@rollout_routes.get("/{rollout}/follow-ups")
def get_follow_ups(services: Services, rollout: str) -> PossibleFollowUps:
    """Return what a rollback and another try of a rollout would take now."""
    return services.rollouts.follow_ups(rollout)


@rollout_routes.get("/{rollout}/devices/{device}")
def get_part(services: Services, rollout: str, device: str) -> DevicePart:
    """Return one device's part in a rollout, with what explains it."""
    return services.rollouts.part(rollout, device)


@rollout_routes.post("/{rollout}/approve")
def approve(services: Services, caller: AskedBy, rollout: str) -> Rollout:
    """Let the next stage begin, or one end despite gates that hold.

    The token that made the rollout may not, if the rollout waits for approval between stages.
    """
    services.rollouts.approve(rollout, caller.name)
    return services.rollouts.get(rollout, limit=DEFAULT_LISTED)


def _order(name: str, act: Callable[[Rollouts, str], None], description: str) -> None:
    def give(services: Services, rollout: str) -> Rollout:
        act(services.rollouts, rollout)
        return services.rollouts.get(rollout, limit=DEFAULT_LISTED)

    rollout_routes.add_api_route(
        f"/{{rollout}}/{name}", give, methods=["POST"], name=name, description=description
    )


_order("pause", Rollouts.pause, "Start nothing until resumed.")
_order("resume", Rollouts.resume, "Go on; after a halt, without the devices that failed.")
_order(
    "abort",
    Rollouts.abort,
    "End it; devices that failed or have not finished go back, unless it is a rollback.",
)


@rollout_routes.post("/{rollout}/rollback", status_code=201)
def roll_back(services: Services, rollout: str, request: RollbackRequest) -> Rollout:
    """Bring the devices that a rollout touched to a release, in a rollout of its own.

    Without a named release each device goes to what it had before. The new rollout has the
    stages and limits of the first, which is aborted if it still goes on.
    """
    return services.rollouts.get(
        services.rollouts.roll_back(rollout, request), limit=DEFAULT_LISTED
    )


@rollout_routes.post("/{rollout}/retry", status_code=201)
def retry(services: Services, rollout: str, request: RetryRequest) -> Rollout:
    """Bring the release to the devices that do not run it, in a rollout of its own.

    It has the stages and limits of the first. A second time is refused while it goes on.
    """
    return services.rollouts.get(services.rollouts.retry(rollout, request), limit=DEFAULT_LISTED)
