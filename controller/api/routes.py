"""All routes of the HTTP API; each subject has a module of its own beside this one.

Rules:
- A route calls one service and returns its answer. It decides nothing. A fault leaves as an
  exception; `controller.api.faults` answers it.
- Handlers are synchronous and run on threads. Two are asynchronous: the upload of a blob, because
  its body comes in parts, and the health, so that a caller without the token gets no thread.
- The routes are made once, when their modules are imported: to make them takes longer than all else
  of a controller's start. A handler gets the services of the application that was asked.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import BaseRoute

from controller.api.access_routes import access_routes, audit_routes
from controller.api.alert_routes import alert_routes
from controller.api.blob_routes import blob_routes
from controller.api.capture_routes import capture_routes
from controller.api.device_routes import device_routes
from controller.api.export_routes import export_routes, metrics_routes
from controller.api.faults import FAULT_RESPONSES
from controller.api.group_routes import group_routes
from controller.api.label_routes import label_routes
from controller.api.measure_routes import measurement_routes
from controller.api.member_routes import member_routes
from controller.api.metadata_routes import metadata_routes
from controller.api.model_routes import model_routes
from controller.api.policy_routes import policy_routes
from controller.api.registration_routes import registration_routes
from controller.api.rehearsal_routes import rehearsal_routes
from controller.api.release_drift_routes import release_drift_routes
from controller.api.release_routes import release_routes
from controller.api.rollout_routes import rollout_routes
from controller.api.saved_query_routes import saved_query_routes
from controller.api.services import Services
from controller.api.shadow_routes import shadow_routes
from controller.api.telemetry_routes import telemetry_routes
from controller.api.token_routes import token_routes
from controller.api.waiting_routes import waiting_routes
from controller.schemas import Health

_controller = APIRouter(prefix="/v1", tags=["controller"], responses=FAULT_RESPONSES)


def fleet_routes() -> list[BaseRoute]:
    """Return all routes, for an application whose `state.services` are `FleetServices`."""
    routers = (
        _controller,
        access_routes,
        audit_routes,
        token_routes,
        waiting_routes,
        registration_routes,
        release_drift_routes,
        device_routes,
        label_routes,
        blob_routes,
        release_routes,
        rollout_routes,
        member_routes,
        rehearsal_routes,
        policy_routes,
        telemetry_routes,
        group_routes,
        saved_query_routes,
        alert_routes,
        export_routes,
        metrics_routes,
        measurement_routes,
        metadata_routes,
        model_routes,
        capture_routes,
        shadow_routes,
    )
    return [route for router in routers for route in router.routes]


@_controller.get("/health")
async def health(services: Services) -> Health:
    """Tell whether the controller works, and what it lacks; this needs no token."""
    return services.health()
