"""The routes of the HTTP API: each calls one service and returns its answer.

Rules:
- This module decides nothing. A fault leaves as an exception; `controller.api.faults` answers it.
- Handlers are synchronous and run on threads. Two are asynchronous: the upload, because its body
  comes in parts, and the health, so that a caller without the token gets no thread.
- The routes are made once, when this module is imported: to make them takes longer than all else
  of a controller's start. A handler gets the services of the application that was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.routing import BaseRoute

from controller.api.access_routes import access_routes, audit_routes
from controller.api.alert_routes import alert_routes
from controller.api.capture_routes import capture_routes
from controller.api.export_routes import export_routes, metrics_routes
from controller.api.faults import FAULT_RESPONSES
from controller.api.group_routes import group_routes
from controller.api.made_answers import MadeAnswer
from controller.api.measure_routes import measurement_routes
from controller.api.member_routes import member_routes
from controller.api.metadata_routes import metadata_routes
from controller.api.model_routes import model_routes
from controller.api.pages import DevicePage, ReleasePage, RolloutPage, TokenPage
from controller.api.registration_routes import registration_routes
from controller.api.rehearsal_routes import rehearsal_routes
from controller.api.release_drift_routes import release_drift_routes
from controller.api.saved_query_routes import saved_query_routes
from controller.api.services import AskedBy, Services, router
from controller.api.shadow_routes import shadow_routes
from controller.api.telemetry_routes import MAX_EVENTS, shown_event, telemetry_routes
from controller.api.waiting_routes import waiting_routes
from controller.device_schemas import Device, DeviceUpdate, SignedDesired
from controller.domain.states import ReleaseState, RolloutState, TokenState
from controller.enrolment_schemas import Token, TokenRequest, TokenSummary
from controller.errors import UnknownBlobError
from controller.policy_schemas import Policy, PolicyRequest
from controller.release_schemas import BlobRef, Release, ReleaseRequest
from controller.rollout_plan_schemas import PreflightReport, RolloutPlan
from controller.rollout_schemas import (
    DevicePart,
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutGates,
    RolloutRequest,
)
from controller.schemas import Health
from controller.services.blobs import UPLOAD, BlobStore
from controller.services.rollouts import Rollouts
from controller.telemetry_schemas import DeviceEvent
from telemetry.server.event_log import EventQuery
from telemetry.server.query_text import checked_time_s

MAX_LISTED = 100_000
DEFAULT_LISTED = 10_000
DEFAULT_NAMED = 20

LimitParameter = Annotated[int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")]


_controller = APIRouter(prefix="/v1", tags=["controller"], responses=FAULT_RESPONSES)
_tokens = router("/v1/tokens", "controller")
_devices = router("/v1/devices", "devices")
_blobs = router("/v1/blobs", "blobs")
_releases = router("/v1/releases", "releases")
_rollouts = router("/v1/rollouts", "rollouts")
_policies = router("/v1/policies", "policies")


def fleet_routes() -> list[BaseRoute]:
    """Return all routes, for an application whose `state.services` are `FleetServices`."""
    routers = (
        _controller,
        access_routes,
        audit_routes,
        _tokens,
        waiting_routes,
        registration_routes,
        release_drift_routes,
        _devices,
        _blobs,
        _releases,
        _rollouts,
        member_routes,
        rehearsal_routes,
        _policies,
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


@_tokens.post("", status_code=201)
def create_token(services: Services, request: TokenRequest) -> Token:
    """Make an enrolment token; it is shown this once."""
    return services.enrolment.create_token(request)


@_tokens.get("")
def list_tokens(
    services: Services, page: TokenPage, state: TokenState | None = None
) -> list[TokenSummary]:
    """List enrolment tokens, the newest first, without their secrets."""
    return page.answer(services.enrolment.tokens(page.request, state))


@_tokens.delete("/{token}")
def revoke_token(services: Services, token: str) -> TokenSummary:
    """End a token: no device enrols with it any more."""
    return services.enrolment.revoke_token(token)


@_devices.get("")
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


@_devices.get("/{device}")
def get_device(services: Services, device: str) -> Device:
    """Return one device."""
    return services.devices.get(device)


@_devices.patch("/{device}")
def update_device(services: Services, device: str, change: DeviceUpdate) -> Device:
    """Replace the labels of a device, quarantine it, let it back, or decommission it.

    A decommissioned identifier stays blocked until `may_enrol_again` is set.
    """
    return services.devices.update(device, change)


@_devices.get("/{device}/desired")
def signed_desired(services: Services, device: str) -> SignedDesired:
    """Return what a device should run, signed, for a device that has no network."""
    services.devices.get(device)
    return services.director.signed(device)


@_devices.get("/{device}/events")
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


@_blobs.put(
    "/{sha256}",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
)
async def put_blob(services: Services, sha256: str, request: Request) -> BlobRef:
    """Store a blob; its content must hash to its name. A second time changes nothing."""
    writer = await run_in_threadpool(services.blobs.writer, sha256)
    with writer:
        async for part in request.stream():
            await run_in_threadpool(writer.write, part)
        await run_in_threadpool(writer.finish)
    return BlobRef(sha256=sha256, size_bytes=writer.size_bytes)


@_blobs.head("/{sha256}", response_class=Response)
def has_blob(services: Services, sha256: str) -> Response:
    """Tell whether a blob is there, and its size."""
    return Response(headers={"Content-Length": str(_size(services.blobs, sha256))})


@_blobs.get("/{sha256}", response_class=Response)
def get_blob(services: Services, sha256: str) -> MadeAnswer:
    """Return the content of a blob."""
    headers = {"Content-Length": str(_size(services.blobs, sha256))}
    return MadeAnswer(
        services.blobs.parts(sha256), media_type="application/octet-stream", headers=headers
    )


@_releases.post("", status_code=201)
def publish(services: Services, request: ReleaseRequest) -> Release:
    """Publish a package whose blobs have been uploaded. A second time changes nothing."""
    return services.releases.publish(request.envelope_sha256)


@_releases.get("")
def list_releases(
    services: Services,
    page: ReleasePage,
    model: Annotated[str, Query(description="Only of this model.")] = "",
    state: ReleaseState | None = None,
) -> list[Release]:
    """List releases, the newest first."""
    return page.answer(services.releases.listed(page.request, model=model, state=state))


@_releases.get("/{ref}")
def get_release(services: Services, ref: str) -> Release:
    """Return a release by `name:version` or digest, with the devices that run it and its deltas."""
    return services.releases.get(ref)


@_releases.get("/{ref}/preflight")
def preflight(
    services: Services,
    ref: str,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="How many devices are named for each reason.")
    ] = DEFAULT_NAMED,
    windowed: Annotated[
        bool, Query(description="Whether the rollout is to have windows, which old agents lack.")
    ] = False,
) -> PreflightReport:
    """Tell which devices could take a release, and who would refuse it and why. Changes nothing."""
    return services.preflight.check(ref, selector, limit=limit, is_windowed=windowed)


@_releases.post("/{ref}/revoke")
def revoke(services: Services, ref: str) -> Release:
    """Stop handing out a release, and halt its rollouts; say which devices run it."""
    return services.releases.revoke(ref)


@_rollouts.post("", status_code=201)
def create(services: Services, request: RolloutRequest) -> Rollout:
    """Bring a release to the devices that match a selector, stage by stage.

    Of very many devices `preparing` are still to be taken in; none starts before all of them are.
    """
    return services.rollouts.get(services.rollouts.create(request), limit=DEFAULT_LISTED)


@_rollouts.post("/plan")
def plan_rollout(
    services: Services,
    request: RolloutRequest,
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="How many devices are named in each place.")
    ] = DEFAULT_NAMED,
) -> RolloutPlan:
    """Tell what such a rollout would do, and why it would not begin. Changes nothing."""
    return services.rollout_plans.plan(request, limit=limit)


@_rollouts.get("")
def list_rollouts(
    services: Services,
    page: RolloutPage,
    state: RolloutState | None = None,
    model: Annotated[str, Query(description="Only of this model.")] = "",
    release: Annotated[str, Query(description="Only of this one: name:version or digest.")] = "",
) -> list[Rollout]:
    """List rollouts without their deployments and logs, the newest first."""
    found = services.rollouts.listed(page.request, state=state, model=model, release=release)
    return page.answer(found)


@_rollouts.get("/{rollout}")
def get_rollout(
    services: Services, rollout: str, limit: LimitParameter = DEFAULT_LISTED
) -> Rollout:
    """Return a rollout with its deployments and the reason of every decision."""
    return services.rollouts.get(rollout, limit=limit)


@_rollouts.get("/{rollout}/gates")
def get_gates(services: Services, rollout: str) -> RolloutGates:
    """Return the gates of a rollout, with what each look at them has shown."""
    return services.rollouts.gates(rollout)


@_rollouts.get("/{rollout}/devices/{device}")
def get_part(services: Services, rollout: str, device: str) -> DevicePart:
    """Return one device's part in a rollout, with what explains it."""
    return services.rollouts.part(rollout, device)


@_rollouts.post("/{rollout}/approve")
def approve(services: Services, caller: AskedBy, rollout: str) -> Rollout:
    """Let the next stage begin, or one end despite gates that hold.

    The token that made the rollout may not, if the rollout waits for approval between stages.
    """
    services.rollouts.approve(rollout, caller.name)
    return services.rollouts.get(rollout, limit=DEFAULT_LISTED)


def _order(name: str, act: Callable[[Rollouts, str], None], description: str) -> None:
    def give(services: Services, rollout: str) -> Rollout:
        act(services.rollouts, rollout)
        return services.rollouts.get(rollout, limit=DEFAULT_LISTED)

    _rollouts.add_api_route(
        f"/{{rollout}}/{name}", give, methods=["POST"], name=name, description=description
    )


_order("pause", Rollouts.pause, "Start nothing until resumed.")
_order("resume", Rollouts.resume, "Go on; after a halt, without the devices that failed.")
_order("abort", Rollouts.abort, "End it; devices that failed or have not finished go back.")


@_rollouts.post("/{rollout}/rollback", status_code=201)
def roll_back(services: Services, rollout: str, request: RollbackRequest) -> Rollout:
    """Bring the devices that a rollout touched to a release, in a rollout of its own.

    Without a named release each device goes to what it had before. The new rollout has the
    stages and limits of the first, which is aborted if it still goes on.
    """
    return services.rollouts.get(
        services.rollouts.roll_back(rollout, request), limit=DEFAULT_LISTED
    )


@_rollouts.post("/{rollout}/retry", status_code=201)
def retry(services: Services, rollout: str, request: RetryRequest) -> Rollout:
    """Bring the release to the devices that do not run it, in a rollout of its own.

    It has the stages and limits of the first. A second time is refused while it goes on.
    """
    return services.rollouts.get(services.rollouts.retry(rollout, request), limit=DEFAULT_LISTED)


@_policies.get("")
def list_policies(services: Services) -> list[Policy]:
    """List policies in the order of precedence: a device gets the first that matches it."""
    return services.policies.all()


@_policies.get("/{policy}")
def get_policy(services: Services, policy: str) -> Policy:
    """Return a policy and how many devices it has reached."""
    return services.policies.get(policy)


@_policies.put("/{policy}")
def put_policy(services: Services, policy: str, request: PolicyRequest) -> Policy:
    """Make a policy or replace the one of that name. A second time changes nothing.

    Devices hear of it within seconds, and at their next connection when they are away.
    """
    return services.policies.put(policy, request)


@_policies.delete("/{policy}")
def remove_policy(services: Services, policy: str) -> Policy:
    """Remove a policy; its devices get the one that then holds for them."""
    return services.policies.remove(policy)


def _size(blobs: BlobStore, sha256: str) -> int:
    size_bytes = blobs.size_bytes(sha256)
    if size_bytes is None:
        raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD)
    return size_bytes
