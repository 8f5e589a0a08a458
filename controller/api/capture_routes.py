"""The routes of what devices capture; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.capture_schemas import Capture, CaptureRequest, KeptSample

MAX_LISTED = 1000
DEFAULT_LISTED = 100

capture_routes: APIRouter = router("/v1/captures", "captures")


@capture_routes.get("")
def list_captures(services: Services) -> list[Capture]:
    """List what is captured of each model, and what is kept of it."""
    return services.captures.all()


@capture_routes.put("/{model}")
def start_capture(services: Services, model: str, request: CaptureRequest) -> Capture:
    """Ask devices for samples of a model, sealed to a key; each call begins anew."""
    return services.captures.start(model, request)


@capture_routes.delete("/{model}")
def stop_capture(services: Services, model: str) -> Capture:
    """Ask for no more samples of a model. What has come is kept until it is old."""
    return services.captures.stop(model)


@capture_routes.get("/{model}/samples")
def list_samples(
    services: Services,
    model: str,
    after_device: Annotated[str, Query(description="Device of the last one before.")] = "",
    after_sample: Annotated[str, Query(description="Its name.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = DEFAULT_LISTED,
) -> list[KeptSample]:
    """List whole samples of a model by device and name, without what is sealed."""
    return services.captures.samples(model, (after_device, after_sample), limit)


@capture_routes.get("/{model}/samples/{device}/{sample}")
def get_sample(services: Services, model: str, device: str, sample: str) -> KeptSample:
    """Return a sample, sealed as it came."""
    return services.captures.sample(model, device, sample)
