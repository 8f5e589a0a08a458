"""The routes of devices that are registered before they enrol; see `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.registration_schemas import Registered, RegistrationRequest, ShownRegistration

MAX_LISTED = 10_000

registration_routes: APIRouter = router("/v1/registrations", "devices")


@registration_routes.get("")
def list_registrations(
    services: Services,
    after: Annotated[str, Query(description="Start after this serial number.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")
    ] = MAX_LISTED,
) -> list[ShownRegistration]:
    """List the devices that are registered, by serial number, and who has enrolled."""
    return services.registrations.page(after=after, limit=limit)


@registration_routes.post("")
def register_devices(services: Services, request: RegistrationRequest) -> Registered:
    """Register devices by serial number, all or none: they enrol by themselves with any token."""
    return services.registrations.add(request)


@registration_routes.delete("")
def unregister_device(
    services: Services,
    serial: Annotated[str, Query(description="The serial number.")],
) -> ShownRegistration:
    """Remove what is registered for a serial number; a device that has enrolled stays in."""
    return services.registrations.remove(serial)
