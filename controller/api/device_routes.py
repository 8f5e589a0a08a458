"""The routes of devices; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.pages import DevicePage
from controller.api.services import Services, router
from controller.api.telemetry_routes import MAX_EVENTS, shown_event
from controller.device_schemas import Device, DeviceUpdate, SignedDesired
from controller.telemetry_schemas import DeviceEvent
from telemetry.server.event_log import EventQuery
from telemetry.server.query_text import checked_time_s

device_routes: APIRouter = router("/v1/devices", "devices")


@device_routes.get("")
def list_devices(
    services: Services,
    page: DevicePage,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
    after: Annotated[str, Query(description="Only identifiers after this one.")] = "",
    drifted: Annotated[
        bool, Query(description="Only devices that run another release than they should.")
    ] = False,
) -> list[Device]:
    """List devices by identifier."""
    return page.answer(
        services.devices.selected(selector, page.request, after=after, only_drifted=drifted)
    )


@device_routes.get("/{device}")
def get_device(services: Services, device: str) -> Device:
    """Return one device."""
    return services.devices.get(device)


@device_routes.patch("/{device}")
def update_device(services: Services, device: str, change: DeviceUpdate) -> Device:
    """Replace the labels of a device, quarantine it, let it back, or decommission it.

    A decommissioned identifier stays blocked until `may_enrol_again` is set.
    """
    return services.devices.update(device, change)


@device_routes.get("/{device}/desired")
def signed_desired(services: Services, device: str) -> SignedDesired:
    """Return what a device should run, signed, for a device that has no network."""
    services.devices.get(device)
    return services.director.signed(device)


@device_routes.get("/{device}/events")
def device_events(
    services: Services,
    device: str,
    kind: Annotated[
        list[str] | None, Query(description="Show only these; may be given more than once.")
    ] = None,
    since_s: Annotated[
        float, Query(description="Seconds since the epoch.", allow_inf_nan=False)
    ] = 0.0,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    model: Annotated[
        str | None, Query(description="Only what is about it, or about the device as a whole.")
    ] = None,
) -> list[DeviceEvent]:
    """Return what happened on a device and why, the oldest first."""
    services.devices.get(device)
    if model is not None:
        services.models.check_known(model)
    query = EventQuery(
        devices=frozenset({device}),
        kinds=tuple(kind or ()),
        since_s=checked_time_s(since_s),
        limit=limit,
        model=model,
    )
    return [shown_event(found) for found in services.telemetry.events(query)]
