"""The routes of the HTTP API that concern rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.routes import DEFAULT_LISTED, LimitParameter
from controller.schemas import RollbackRequest, Rollout, RolloutRequest
from controller.services.rollout_views import RolloutViews
from controller.services.rollouts import RolloutOrders

MAX_ROLLOUTS = 100


def rollout_routes(orders: RolloutOrders, views: RolloutViews) -> APIRouter:
    """Return the routes for rollouts."""
    router = APIRouter(prefix="/v1/rollouts", tags=["rollouts"])

    @router.post("", status_code=201)
    def create(request: RolloutRequest) -> Rollout:
        """Bring a release to the devices that a selector means, stage by stage."""
        return views.get(orders.create(request), limit=DEFAULT_LISTED)

    @router.get("")
    def list_rollouts(
        limit: Annotated[int, Query(ge=1, le=1000)] = MAX_ROLLOUTS,
    ) -> list[Rollout]:
        """List rollouts without their deployments and logs, the newest first."""
        return views.newest(limit=limit)

    @router.get("/{rollout}")
    def get_rollout(rollout: str, limit: LimitParameter = DEFAULT_LISTED) -> Rollout:
        """Return a rollout with its deployments and the reason of every decision."""
        return views.get(rollout, limit=limit)

    def order(name: str, act: Callable[[str], None], description: str) -> None:
        def give(rollout: str) -> Rollout:
            act(rollout)
            return views.get(rollout, limit=DEFAULT_LISTED)

        router.add_api_route(
            f"/{{rollout}}/{name}", give, methods=["POST"], name=name, description=description
        )

    order("pause", orders.pause, "Start nothing until resumed.")
    order("resume", orders.resume, "Go on.")
    order("approve", orders.approve, "Let the next stage begin.")
    order("abort", orders.abort, "End it; devices that failed or have not finished go back.")

    @router.post("/{rollout}/rollback", status_code=201)
    def roll_back(rollout: str, request: RollbackRequest) -> Rollout:
        """Bring the devices that a rollout touched to a named release, in a rollout of its own.

        It has the stages and limits of the first, which is aborted if it still goes on.
        """
        return views.get(orders.roll_back(rollout, request), limit=DEFAULT_LISTED)

    return router
