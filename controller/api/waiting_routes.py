"""The routes of devices that wait to be let in; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.enrolment_schemas import WaitingDevice

waiting_routes: APIRouter = router("/v1/waiting", "devices")


@waiting_routes.get("")
def list_waiting(services: Services) -> list[WaitingDevice]:
    """List the devices that asked to enrol and are not in yet: who asked first is first."""
    return services.waiting.all()


@waiting_routes.post("/{device}/accept")
def accept_device(services: Services, device: str) -> WaitingDevice:
    """Let a device in that waits or was refused; it goes on when it asks the next time."""
    return services.waiting.accept(device)


@waiting_routes.post("/{device}/refuse")
def refuse_device(services: Services, device: str) -> WaitingDevice:
    """Refuse a device that waits; another one may ask for its identifier then."""
    return services.waiting.refuse(device)
