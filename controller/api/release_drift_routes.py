"""The route of devices that run another release than they should; see `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.device_schemas import DriftedModel

MAX_LISTED = 100_000
DEFAULT_LISTED = 10_000

release_drift_routes: APIRouter = router("/v1/release-drift", "devices")


@release_drift_routes.get("")
def list_release_drift(
    services: Services,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
    after: Annotated[str, Query(description="Start after this device ...")] = "",
    after_model: Annotated[str, Query(description="... and this model of it.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")
    ] = DEFAULT_LISTED,
) -> list[DriftedModel]:
    """List devices that run another release than they should, since when, and why."""
    place = (after, after_model)
    return services.release_drift.found(selector, after=place, limit=limit)
