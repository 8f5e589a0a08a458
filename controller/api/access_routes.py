"""The routes of API tokens and of the audit log; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.access_schemas import (
    ApiToken,
    ApiTokenRequest,
    AuditEntry,
    NewApiToken,
    RotateRequest,
)
from controller.api.services import Services, router
from telemetry.server.query_text import checked_time_s

DEFAULT_ROWS = 100
MAX_ROWS = 1000

access_routes: APIRouter = router("/v1/access", "access")
audit_routes: APIRouter = router("/v1/audit", "access")


@access_routes.get("")
def list_api_tokens(services: Services) -> list[ApiToken]:
    """List API tokens by name, without their secrets."""
    return services.access.all()


@access_routes.post("", status_code=201)
def create_api_token(services: Services, request: ApiTokenRequest) -> NewApiToken:
    """Make an API token; it is shown this once."""
    return services.access.create(request)


@access_routes.get("/{name}")
def get_api_token(services: Services, name: str) -> ApiToken:
    """Return an API token without its secret."""
    return services.access.get(name)


@access_routes.delete("/{name}")
def revoke_api_token(services: Services, name: str) -> ApiToken:
    """End an API token from the next request on. A second time changes nothing."""
    return services.access.revoke(name)


@access_routes.post("/{name}/rotate")
def rotate_api_token(services: Services, name: str, request: RotateRequest) -> NewApiToken:
    """Give an API token a new secret, which is shown this once."""
    return services.access.rotate(name, request)


@audit_routes.get("")
def list_audit_rows(
    services: Services,
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**62,
            description="The rows that follow this number, in order; without it the newest ones.",
        ),
    ] = None,
    since_s: Annotated[float, Query(description="Wall time.", allow_inf_nan=False)] = 0.0,
    actor: Annotated[str, Query(description="Name of an API token.")] = "",
    subject: Annotated[str, Query(description="A part of the subject.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS,
) -> list[AuditEntry]:
    """Return rows of the audit log, the oldest first.

    With `after` the other conditions are not looked at: then the rows are those of the chain.
    """
    if after is not None:
        return services.audit.after(after, limit=limit)
    return services.audit.newest(
        since_s=checked_time_s(since_s), actor=actor, subject=subject, limit=limit
    )
