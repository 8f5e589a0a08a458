"""What the routes of the HTTP API give access to, and how a handler gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Security
from fastapi.security import HTTPBearer

from controller.api.faults import FAULT_RESPONSES
from controller.api.made_answers import Running
from controller.domain.roles import HOME, Caller
from controller.exporting.metrics_page import MetricsPage
from controller.schemas import Health
from controller.services.access import Access
from controller.services.alert_rules import AlertRuleBook
from controller.services.audit_log import AuditLog
from controller.services.blobs import BlobStore
from controller.services.captures import Captures
from controller.services.devices import Devices
from controller.services.director import Director
from controller.services.enrolment import Enrolment
from controller.services.groups import Groups
from controller.services.measurements import Measurements
from controller.services.membership import Membership
from controller.services.metadata import FleetMetadata
from controller.services.models import Models
from controller.services.policies import Policies
from controller.services.preflight import Preflight
from controller.services.registrations import Registrations
from controller.services.rehearsals import Rehearsals
from controller.services.release_drift import ReleaseDrift
from controller.services.releases import Releases
from controller.services.report_requests import ReportRequests
from controller.services.rollout_plans import RolloutPlans
from controller.services.rollouts import Rollouts
from controller.services.saved_queries import SavedQueries
from controller.services.shadows import Shadows
from controller.services.shown_alerts import ShownAlerts
from controller.services.waiting_devices import WaitingDevices
from controller.services.webhooks import Webhooks
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

MAX_EXPORTS: Final = 4
"""Exports of telemetry at one time: each keeps a processor busy while its client reads fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServices:
    """What the API gives access to."""

    access: Access
    audit: AuditLog
    alerts: ShownAlerts
    alert_rules: AlertRuleBook
    captures: Captures
    devices: Devices
    director: Director
    enrolment: Enrolment
    measurements: Measurements
    metadata: FleetMetadata | None
    """None for a fleet with a trust file in its place."""

    groups: Groups
    membership: Membership
    models: Models
    policies: Policies
    preflight: Preflight
    registrations: Registrations
    release_drift: ReleaseDrift
    rehearsals: Rehearsals
    releases: Releases
    report_requests: ReportRequests
    rollouts: Rollouts
    rollout_plans: RolloutPlans
    saved_queries: SavedQueries
    shadows: Shadows
    blobs: BlobStore
    telemetry: TelemetryStore
    waiting: WaitingDevices
    webhooks: Webhooks
    health: Callable[[], Health]
    clock: Clock
    exports: Running = field(default_factory=lambda: Running(MAX_EXPORTS, "exports"))
    metrics_page: MetricsPage | None = None
    """None where Prometheus gets nothing."""


async def _services(request: Request) -> FleetServices:
    services: FleetServices = request.app.state.services
    return services


Services = Annotated[FleetServices, Depends(_services)]


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


AskedBy = Annotated[Caller, Depends(_caller)]
"""Whose token the guard has seen."""


def author(caller: Caller, said: str) -> str:
    """Return who writes something that others see: the token's name.

    Args:
        caller: Whose token the guard has seen.
        said: Who the request says it is from. Only the token of the controller's directory, which
            people share, may say so.
    """
    return said if caller.name == HOME else caller.name


def router(path: str, tag: str) -> APIRouter:
    """Return a router of paths that need the token."""
    # This checks nothing: it only documents which token the guard requires.
    needed = Security(HTTPBearer(auto_error=False, description="The API token."))
    return APIRouter(prefix=path, tags=[tag], responses=FAULT_RESPONSES, dependencies=[needed])
