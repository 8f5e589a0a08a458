"""The route of rehearsals of rollouts; rules as in `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.rehearsal_schemas import Rehearsal, RehearsalRequest

rehearsal_routes: APIRouter = router("/v1/rollouts", "rollouts")


@rehearsal_routes.post("/rehearse")
def rehearse_rollout(services: Services, request: RehearsalRequest) -> Rehearsal:
    """Tell what such a rollout would have done, by what its devices have shown. Changes nothing."""
    return services.rehearsals.rehearse(request)
