"""The routes of releases; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.pages import ReleasePage
from controller.api.services import Services, router
from controller.domain.states import ReleaseState
from controller.release_schemas import Release, ReleaseRequest
from controller.rollout_plan_schemas import PreflightReport

MAX_NAMED = 100_000
DEFAULT_NAMED = 20

release_routes: APIRouter = router("/v1/releases", "releases")


@release_routes.post("", status_code=201)
def publish(services: Services, request: ReleaseRequest) -> Release:
    """Publish a package whose blobs have been uploaded. A second time changes nothing."""
    return services.releases.publish(request.envelope_sha256)


@release_routes.get("")
def list_releases(
    services: Services,
    page: ReleasePage,
    model: Annotated[str, Query(description="Only of this model.")] = "",
    state: ReleaseState | None = None,
) -> list[Release]:
    """List releases, the newest first."""
    return page.answer(services.releases.listed(page.request, model=model, state=state))


@release_routes.get("/{ref}")
def get_release(services: Services, ref: str) -> Release:
    """Return a release by `name:version` or digest, with the devices that run it and its deltas."""
    return services.releases.get(ref)


@release_routes.get("/{ref}/preflight")
def preflight(
    services: Services,
    ref: str,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=MAX_NAMED, description="How many devices are named for each reason.")
    ] = DEFAULT_NAMED,
    windowed: Annotated[
        bool, Query(description="Whether the rollout is to have windows, which old agents lack.")
    ] = False,
) -> PreflightReport:
    """Tell which devices could take a release, and who would refuse it and why. Changes nothing."""
    return services.preflight.check(ref, selector, limit=limit, is_windowed=windowed)


@release_routes.post("/{ref}/revoke")
def revoke(services: Services, ref: str) -> Release:
    """Stop handing out a release, and halt its rollouts; say which devices run it."""
    return services.releases.revoke(ref)
