"""The route of labels of several devices; rules as in `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.label_schemas import LabelRequest, LabelsChange

label_routes: APIRouter = router("/v1/devices", "devices")


@label_routes.post("/labels")
def label_devices(services: Services, request: LabelRequest) -> LabelsChange:
    """Set and remove labels of several devices, of all or of none; or tell what would change."""
    return services.devices.relabel(request)
