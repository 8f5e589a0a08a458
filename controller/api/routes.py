"""The routes of the HTTP API: each calls one service and returns its answer.

Rules:
- This module decides nothing. A fault leaves as an exception; `controller.api.faults` answers it.
- Handlers are synchronous and run on threads. Two are asynchronous: the upload, because its body
  comes in parts, and the health, so that a caller without the token gets no thread.
- The routes are made once, when this module is imported: to make them takes longer than all else
  of a controller's start. A handler gets the services of the application that was asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from starlette.routing import BaseRoute

from controller.api.faults import FAULT_RESPONSES
from controller.api.measure_routes import measurement_routes
from controller.api.metadata_routes import metadata_routes
from controller.api.model_routes import model_routes
from controller.api.services import Services, router
from controller.errors import UnknownBlobError
from controller.policy_schemas import Policy, PolicyRequest
from controller.rollout_schemas import (
    PreflightReport,
    RetryRequest,
    RollbackRequest,
    Rollout,
    RolloutRequest,
)
from controller.schemas import (
    BlobRef,
    ComparedGroup,
    Device,
    DeviceEvent,
    DeviceUpdate,
    Health,
    Release,
    ReleaseRequest,
    ReportedMetric,
    ReportingDevice,
    SignedDesired,
    TelemetryComparison,
    TelemetryTable,
    Token,
    TokenRequest,
    TokenSummary,
)
from controller.services.blobs import UPLOAD, BlobStore
from controller.services.rollouts import Rollouts
from telemetry.metrics import KINDS, METRICS
from telemetry.server import compare
from telemetry.server import query as telemetry_query
from telemetry.server.event_log import EventQuery
from telemetry.server.query_text import parse_conditions, parse_time_s
from telemetry.server.rows import DeviceLosses, Reported, StoredEvent

MAX_LISTED = 100_000
DEFAULT_LISTED = 10_000
DEFAULT_ROLLOUTS = 100
MAX_ROLLOUTS = 1000
MAX_EVENTS = 1000
DEFAULT_NAMED = 20

LimitParameter = Annotated[int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")]


_controller = APIRouter(prefix="/v1", tags=["controller"], responses=FAULT_RESPONSES)
_tokens = router("/v1/tokens", "controller")
_devices = router("/v1/devices", "devices")
_blobs = router("/v1/blobs", "blobs")
_releases = router("/v1/releases", "releases")
_rollouts = router("/v1/rollouts", "rollouts")
_policies = router("/v1/policies", "policies")
_telemetry = router("/v1/telemetry", "telemetry")


def fleet_routes() -> list[BaseRoute]:
    """Return all routes, for an application whose `state.services` are `FleetServices`."""
    routers = (
        _controller,
        _tokens,
        _devices,
        _blobs,
        _releases,
        _rollouts,
        _policies,
        _telemetry,
        measurement_routes,
        metadata_routes,
        model_routes,
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
def list_tokens(services: Services, limit: LimitParameter = DEFAULT_LISTED) -> list[TokenSummary]:
    """List enrolment tokens, the newest first, without their secrets."""
    return services.enrolment.newest_tokens(limit=limit)


@_tokens.delete("/{token}")
def revoke_token(services: Services, token: str) -> TokenSummary:
    """End a token: no device enrols with it any more."""
    return services.enrolment.revoke_token(token)


@_devices.get("")
def list_devices(
    services: Services,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
    after: Annotated[str, Query(description="Start after this identifier.")] = "",
    limit: LimitParameter = DEFAULT_LISTED,
    drifted: Annotated[
        bool, Query(description="Only devices that run another release than they should.")
    ] = False,
) -> list[Device]:
    """List devices by identifier."""
    return services.devices.selected(selector, after=after, limit=limit, only_drifted=drifted)


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
        since_s=since_s,
        limit=limit,
        model=model,
    )
    return [_event(found) for found in services.telemetry.events(query)]


def _event(found: StoredEvent) -> DeviceEvent:
    event = found.event
    return DeviceEvent(
        device=found.device, at_s=event.at_s, kind=event.kind, reason=event.reason, data=event.data
    )


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


@_blobs.head("/{sha256}")
def has_blob(services: Services, sha256: str) -> Response:
    """Tell whether a blob is there, and its size."""
    return Response(headers={"Content-Length": str(_size(services.blobs, sha256))})


@_blobs.get("/{sha256}", response_class=StreamingResponse)
def get_blob(services: Services, sha256: str) -> StreamingResponse:
    """Return the content of a blob."""
    headers = {"Content-Length": str(_size(services.blobs, sha256))}
    return StreamingResponse(
        services.blobs.parts(sha256), media_type="application/octet-stream", headers=headers
    )


@_releases.post("", status_code=201)
def publish(services: Services, request: ReleaseRequest) -> Release:
    """Publish a package whose blobs have been uploaded. A second time changes nothing."""
    return services.releases.publish(request.envelope_sha256)


@_releases.get("")
def list_releases(services: Services) -> list[Release]:
    """List releases, the newest first."""
    return services.releases.newest()


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
) -> PreflightReport:
    """Tell which devices could take a release, and who would refuse it and why. Changes nothing."""
    return services.preflight.check(ref, selector, limit=limit)


@_releases.post("/{ref}/revoke")
def revoke(services: Services, ref: str) -> Release:
    """Stop handing out a release, and halt its rollouts; say which devices run it."""
    return services.releases.revoke(ref)


@_rollouts.post("", status_code=201)
def create(services: Services, request: RolloutRequest) -> Rollout:
    """Bring a release to the devices that match a selector, stage by stage."""
    return services.rollouts.get(services.rollouts.create(request), limit=DEFAULT_LISTED)


@_rollouts.get("")
def list_rollouts(
    services: Services,
    limit: Annotated[int, Query(ge=1, le=MAX_ROLLOUTS)] = DEFAULT_ROLLOUTS,
) -> list[Rollout]:
    """List rollouts without their deployments and logs, the newest first."""
    return services.rollouts.newest(limit=limit)


@_rollouts.get("/{rollout}")
def get_rollout(
    services: Services, rollout: str, limit: LimitParameter = DEFAULT_LISTED
) -> Rollout:
    """Return a rollout with its deployments and the reason of every decision."""
    return services.rollouts.get(rollout, limit=limit)


def _order(name: str, act: Callable[[Rollouts, str], None], description: str) -> None:
    def give(services: Services, rollout: str) -> Rollout:
        act(services.rollouts, rollout)
        return services.rollouts.get(rollout, limit=DEFAULT_LISTED)

    _rollouts.add_api_route(
        f"/{{rollout}}/{name}", give, methods=["POST"], name=name, description=description
    )


_order("pause", Rollouts.pause, "Start nothing until resumed.")
_order("resume", Rollouts.resume, "Go on; after a halt, without the devices that failed.")
_order("approve", Rollouts.approve, "Let the next stage begin.")
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


@_telemetry.get("/query", name="query")
def query_telemetry(  # noqa: PLR0913, PLR0917 - one parameter for each of the query
    services: Services,
    metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
    stat: Annotated[str, Query(description="Such as count,p50,p95.")] = "",
    by: Annotated[str, Query(description="Such as variant,device,minute.")] = "",
    where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    step: Annotated[
        str, Query(description="One row for each time of this length, such as 5m.")
    ] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
) -> TelemetryTable:
    """Ask for statistics of a metric; percentiles are true over all devices."""
    query = telemetry_query.parse(
        metric,
        statistics=stat,
        group_by=by,
        where=",".join(where or ()),
        since=since,
        until=until,
        step=step,
        now_s=services.clock.now_s(),
    )
    query = replace(
        query,
        devices=services.devices.chosen(selector),
        device_values=services.devices.values_by_name(query.group_by),
    )
    table = telemetry_query.run(services.telemetry, query)
    if not table.rows:  # perhaps because a name is misspelt
        named = [value for name, value in query.where if name == telemetry_query.MODEL]
        services.models.check_known(*named)
    return TelemetryTable(columns=list(table.columns), rows=[list(row) for row in table.rows])


@_telemetry.get("/compare", name="compare")
def compare_telemetry(  # noqa: PLR0913, PLR0917 - one parameter for each of the query
    services: Services,
    metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
    first: Annotated[str, Query(description="The first group, such as digits:1.0.0.")],
    second: Annotated[str, Query(description="The second group.")],
    by: Annotated[str, Query(description="What parts them: an attribute or a label.")] = "release",
    stat: Annotated[str, Query(description="mean, p95 or so.")] = "mean",
    where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
) -> TelemetryComparison:
    """Compare two groups; the interval of the difference takes devices as the unit of chance."""
    query = telemetry_query.parse(
        metric,
        statistics=stat,
        where=",".join(where or ()),
        since=since,
        until=until,
        now_s=services.clock.now_s(),
    )
    query = replace(
        query,
        devices=services.devices.chosen(selector),
        device_values=services.devices.values_by_name((by,)),
    )
    found = compare.run(services.telemetry, query, by, first, second)
    result = found.result
    return TelemetryComparison(
        metric=metric,
        statistic=stat,
        by=by,
        first=_group(found.first, result.first),
        second=_group(found.second, result.second),
        difference=result.difference,
        low=result.low if result.has_interval else None,
        high=result.high if result.has_interval else None,
        told=result.is_told,
    )


def _group(side: compare.Side, value: float) -> ComparedGroup:
    return ComparedGroup(name=side.name, value=value, devices=side.devices, values=side.values)


@_telemetry.get("/events", name="events")
def list_events(
    services: Services,
    kind: Annotated[
        list[str] | None, Query(description="Only these; may be given more than once.")
    ] = None,
    where: Annotated[
        list[str] | None, Query(description="key=value in the data of an event; repeatable.")
    ] = None,
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    model: Annotated[
        str | None, Query(description="Only what is about it, or about a device as a whole.")
    ] = None,
) -> list[DeviceEvent]:
    """Return what happened on devices and why, the oldest first."""
    if model is not None:
        services.models.check_known(model)
    now_s = services.clock.now_s()
    query = EventQuery(
        devices=services.devices.chosen(selector),
        kinds=tuple(kind or ()),
        since_s=parse_time_s(since, now_s),
        until_s=parse_time_s(until, now_s) if until.strip() else math.inf,
        model=model,
        where=parse_conditions(",".join(where or ())),
        limit=limit,
    )
    return [_event(found) for found in services.telemetry.events(query)]


@_telemetry.get("/devices", name="devices")
def list_reporting_devices(
    services: Services,
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
) -> list[ReportingDevice]:
    """Return how complete the telemetry of each enrolled device is, by name."""
    known = {found.device: found for found in services.telemetry.devices()}
    nothing = DeviceLosses("", 0, 0, 0)
    return [
        ReportingDevice(
            device=device,
            online=online,
            newest_at_s=known.get(device, nothing).newest_s,
            batches=known.get(device, nothing).batches,
            dropped=known.get(device, nothing).dropped,
            refused=known.get(device, nothing).refused,
        )
        for device, online in services.devices.presence(selector).items()
    ]


@_telemetry.get("/metrics", name="metrics")
def list_metrics(services: Services) -> list[ReportedMetric]:
    """Return which metrics devices have reported, by name."""
    return [_metric(found) for found in services.telemetry.metrics()]


def _metric(found: Reported) -> ReportedMetric:
    known = METRICS.get(found.name)
    known = known if known is not None and known.kind == found.kind else None
    return ReportedMetric(
        name=found.name,
        kind=KINDS[found.kind],
        unit=known.unit if known else "",
        attributes=list(found.attributes),
        series=found.series,
        meaning=known.meaning if known else "",
    )


def _size(blobs: BlobStore, sha256: str) -> int:
    size_bytes = blobs.size_bytes(sha256)
    if size_bytes is None:
        raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD)
    return size_bytes
