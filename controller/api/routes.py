"""The routes of the HTTP API: each calls one service and returns its answer.

Rules:
- This module decides nothing. A fault leaves as an exception; `controller.api.faults` answers it.
- Handlers are synchronous and run on threads. Two are asynchronous: the upload, because its body
  comes in parts, and the health, so that a caller without the token gets no thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse

from controller.errors import UnknownBlobError
from controller.rollout_schemas import RetryRequest, RollbackRequest, Rollout, RolloutRequest
from controller.schemas import (
    BlobRef,
    Device,
    DeviceEvent,
    DeviceUpdate,
    Health,
    Policy,
    PolicyRequest,
    Release,
    ReleaseRequest,
    TelemetryTable,
    Token,
    TokenRequest,
    TokenSummary,
)
from controller.services.blobs import UPLOAD, BlobStore
from controller.services.devices import Devices
from controller.services.enrolment import Enrolment
from controller.services.policies import Policies
from controller.services.releases import Releases
from controller.services.rollouts import Rollouts
from telemetry.server import query as telemetry_query
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

MAX_LISTED = 100_000
DEFAULT_LISTED = 10_000
DEFAULT_ROLLOUTS = 100
MAX_ROLLOUTS = 1000
MAX_EVENTS = 1000

LimitParameter = Annotated[int, Query(ge=1, le=MAX_LISTED, description="The greatest number.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetServices:
    """What the API gives access to."""

    devices: Devices
    enrolment: Enrolment
    policies: Policies
    releases: Releases
    rollouts: Rollouts
    blobs: BlobStore
    telemetry: TelemetryStore
    health: Callable[[], Health]
    clock: Clock


def health_route(health: Callable[[], Health]) -> APIRouter:
    """Return the route that needs no token; `health` must not block."""
    router = APIRouter(prefix="/v1", tags=["controller"])

    @router.get("/health", name="health")
    async def answer() -> Health:
        """Tell whether the controller works, and what it lacks; this needs no token."""
        return health()

    return router


def fleet_routes(services: FleetServices) -> list[APIRouter]:
    """Return the routes that need the token: all but the health."""
    return [
        _tokens(services.enrolment),
        _devices(services),
        _blobs(services.blobs),
        _releases(services.releases),
        _rollouts(services.rollouts),
        _policies(services.policies),
        _telemetry(services.telemetry, services.clock),
    ]


def _tokens(enrolment: Enrolment) -> APIRouter:
    router = APIRouter(prefix="/v1/tokens", tags=["controller"])

    @router.post("", status_code=201)
    def create_token(request: TokenRequest) -> Token:
        """Make an enrolment token; it is shown this once."""
        return enrolment.create_token(request)

    @router.get("")
    def list_tokens(limit: LimitParameter = DEFAULT_LISTED) -> list[TokenSummary]:
        """List enrolment tokens, the newest first, without their secrets."""
        return enrolment.newest_tokens(limit=limit)

    @router.delete("/{token}")
    def revoke_token(token: str) -> TokenSummary:
        """End a token: no device enrols with it any more."""
        return enrolment.revoke_token(token)

    return router


def _devices(services: FleetServices) -> APIRouter:
    router = APIRouter(prefix="/v1/devices", tags=["devices"])

    @router.get("")
    def list_devices(
        selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
        after: Annotated[str, Query(description="Start after this identifier.")] = "",
        limit: LimitParameter = DEFAULT_LISTED,
        drifted: Annotated[
            bool, Query(description="Only devices that run another release than they should.")
        ] = False,
    ) -> list[Device]:
        """List devices by identifier."""
        return services.devices.selected(selector, after=after, limit=limit, only_drifted=drifted)

    @router.get("/{device}")
    def get_device(device: str) -> Device:
        """Return one device."""
        return services.devices.get(device)

    @router.patch("/{device}")
    def update_device(device: str, change: DeviceUpdate) -> Device:
        """Replace the labels of a device, quarantine it, let it back, or decommission it.

        A decommissioned identifier stays blocked until `may_enrol_again` is set.
        """
        return services.devices.update(device, change)

    @router.get("/{device}/events")
    def device_events(
        device: str,
        kind: Annotated[
            list[str] | None, Query(description="Show only these; may be given more than once.")
        ] = None,
        since_s: Annotated[
            float, Query(description="Seconds since the epoch.", allow_inf_nan=False)
        ] = 0.0,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    ) -> list[DeviceEvent]:
        """Return what happened on a device and why, the oldest first."""
        services.devices.get(device)
        kinds = tuple(kind or ())
        return [
            DeviceEvent(
                device=found.device,
                at_s=found.event.at_s,
                kind=found.event.kind,
                reason=found.event.reason,
                data=found.event.data,
            )
            for found in services.telemetry.events(device, kinds, since_s, limit)
        ]

    return router


def _blobs(blobs: BlobStore) -> APIRouter:
    router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

    @router.put(
        "/{sha256}",
        status_code=201,
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
    )
    async def put_blob(sha256: str, request: Request) -> BlobRef:
        """Store a blob; its content must hash to its name. A second time changes nothing."""
        writer = await run_in_threadpool(blobs.writer, sha256)
        with writer:
            async for part in request.stream():
                await run_in_threadpool(writer.write, part)
            await run_in_threadpool(writer.finish)
        return BlobRef(sha256=sha256, size_bytes=writer.size_bytes)

    @router.head("/{sha256}")
    def has_blob(sha256: str) -> Response:
        """Tell whether a blob is there, and its size."""
        return Response(headers={"Content-Length": str(_size(blobs, sha256))})

    @router.get("/{sha256}", response_class=StreamingResponse)
    def get_blob(sha256: str) -> StreamingResponse:
        """Return the content of a blob."""
        headers = {"Content-Length": str(_size(blobs, sha256))}
        return StreamingResponse(
            blobs.parts(sha256), media_type="application/octet-stream", headers=headers
        )

    return router


def _releases(releases: Releases) -> APIRouter:
    router = APIRouter(prefix="/v1/releases", tags=["releases"])

    @router.post("", status_code=201)
    def publish(request: ReleaseRequest) -> Release:
        """Publish a package whose blobs have been uploaded. A second time changes nothing."""
        return releases.publish(request.envelope_sha256)

    @router.get("")
    def list_releases() -> list[Release]:
        """List releases, the newest first."""
        return releases.newest()

    @router.get("/{ref}")
    def get_release(ref: str) -> Release:
        """Return a release by `name:version` or digest, with the devices that run it."""
        return releases.get(ref)

    @router.post("/{ref}/revoke")
    def revoke(ref: str) -> Release:
        """Stop handing out a release, and halt its rollouts; say which devices run it."""
        return releases.revoke(ref)

    return router


def _rollouts(rollouts: Rollouts) -> APIRouter:
    router = APIRouter(prefix="/v1/rollouts", tags=["rollouts"])

    @router.post("", status_code=201)
    def create(request: RolloutRequest) -> Rollout:
        """Bring a release to the devices that match a selector, stage by stage."""
        return rollouts.get(rollouts.create(request), limit=DEFAULT_LISTED)

    @router.get("")
    def list_rollouts(
        limit: Annotated[int, Query(ge=1, le=MAX_ROLLOUTS)] = DEFAULT_ROLLOUTS,
    ) -> list[Rollout]:
        """List rollouts without their deployments and logs, the newest first."""
        return rollouts.newest(limit=limit)

    @router.get("/{rollout}")
    def get_rollout(rollout: str, limit: LimitParameter = DEFAULT_LISTED) -> Rollout:
        """Return a rollout with its deployments and the reason of every decision."""
        return rollouts.get(rollout, limit=limit)

    def order(name: str, act: Callable[[str], None], description: str) -> None:
        def give(rollout: str) -> Rollout:
            act(rollout)
            return rollouts.get(rollout, limit=DEFAULT_LISTED)

        router.add_api_route(
            f"/{{rollout}}/{name}", give, methods=["POST"], name=name, description=description
        )

    order("pause", rollouts.pause, "Start nothing until resumed.")
    order("resume", rollouts.resume, "Go on; after a halt, without the devices that failed.")
    order("approve", rollouts.approve, "Let the next stage begin.")
    order("abort", rollouts.abort, "End it; devices that failed or have not finished go back.")

    @router.post("/{rollout}/rollback", status_code=201)
    def roll_back(rollout: str, request: RollbackRequest) -> Rollout:
        """Bring the devices that a rollout touched to a release, in a rollout of its own.

        Without a named release each device goes to what it had before. The new rollout has the
        stages and limits of the first, which is aborted if it still goes on.
        """
        return rollouts.get(rollouts.roll_back(rollout, request), limit=DEFAULT_LISTED)

    @router.post("/{rollout}/retry", status_code=201)
    def retry(rollout: str, request: RetryRequest) -> Rollout:
        """Bring the release to the devices that do not run it, in a rollout of its own.

        It has the stages and limits of the first. A second time is refused while it goes on.
        """
        return rollouts.get(rollouts.retry(rollout, request), limit=DEFAULT_LISTED)

    return router


def _policies(policies: Policies) -> APIRouter:
    router = APIRouter(prefix="/v1/policies", tags=["policies"])

    @router.get("")
    def list_policies() -> list[Policy]:
        """List policies in the order of precedence: a device gets the first that matches it."""
        return policies.all()

    @router.get("/{policy}")
    def get_policy(policy: str) -> Policy:
        """Return a policy and how many devices it has reached."""
        return policies.get(policy)

    @router.put("/{policy}")
    def put_policy(policy: str, request: PolicyRequest) -> Policy:
        """Make a policy or replace the one of that name. A second time changes nothing.

        Devices hear of it within seconds, and at their next connection when they are away.
        """
        return policies.put(policy, request)

    @router.delete("/{policy}")
    def remove_policy(policy: str) -> Policy:
        """Remove a policy; its devices get the one that then holds for them."""
        return policies.remove(policy)

    return router


def _telemetry(store: TelemetryStore, clock: Clock) -> APIRouter:
    router = APIRouter(prefix="/v1/telemetry", tags=["telemetry"])

    @router.get("/query", name="query")
    def answer(
        metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
        stat: Annotated[str, Query(description="Such as count,p50,p95.")] = "",
        by: Annotated[str, Query(description="Such as variant,device,minute.")] = "",
        where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
        since: Annotated[str, Query(description="Such as 1h.")] = "1h",
        step: Annotated[
            str, Query(description="One row for each time of this length, such as 5m.")
        ] = "",
    ) -> TelemetryTable:
        """Ask for statistics of a metric; percentiles are true over all devices."""
        query = telemetry_query.parse(
            metric,
            statistics=stat,
            group_by=by,
            where=",".join(where or ()),
            since=since,
            step=step,
            now_s=clock.now_s(),
        )
        table = telemetry_query.run(store, query)
        return TelemetryTable(columns=list(table.columns), rows=[list(row) for row in table.rows])

    return router


def _size(blobs: BlobStore, sha256: str) -> int:
    size_bytes = blobs.size_bytes(sha256)
    if size_bytes is None:
        raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD)
    return size_bytes
