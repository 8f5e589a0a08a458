"""The routes of measurements on devices; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.measure_schemas import Askable, Measurement, MeasurementRequest
from wire.codec import to_builtins

DEFAULT_LISTED = 20
MAX_LISTED = 1000

measurement_routes: APIRouter = router("/v1/measurements", "measurements")


@measurement_routes.post("", status_code=201)
def measure(services: Services, request: MeasurementRequest) -> Measurement:
    """Ask lent devices to measure a release, beside what they serve."""
    return services.measurements.ask(request)


@measurement_routes.get("")
def list_measurements(
    services: Services,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = DEFAULT_LISTED,
) -> list[Measurement]:
    """List requests to measure, the newest first."""
    return services.measurements.newest(limit=limit)


@measurement_routes.get("/figures")
def figures(
    services: Services,
    profile: Annotated[str, Query(description="A profile's name; empty means all.")] = "",
) -> list[dict[str, Any]]:
    """Return what variants needed on devices of each profile, for a build."""
    return [to_builtins(each) for each in services.measurements.figures(profile)]


@measurement_routes.get("/devices")
def askable(
    services: Services,
    selector: Annotated[str, Query(description="A label expression.")],
) -> Askable:
    """Return which devices could be asked now, whatever the release; asks nobody."""
    return services.measurements.askable(selector)


@measurement_routes.get("/{measurement}")
def get_measurement(services: Services, measurement: str) -> Measurement:
    """Return a request to measure, and what the devices answered."""
    return services.measurements.get(measurement)


@measurement_routes.post("/{measurement}/cancel")
def cancel_measurement(services: Services, measurement: str) -> Measurement:
    """Wait no longer for the devices that have not answered. What comes late still counts."""
    return services.measurements.cancel(measurement)
