"""The routes of API tokens and of the audit log; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.access_schemas import (
    ApiToken,
    ApiTokenRequest,
    ApiTokenState,
    AuditEntry,
    NewApiToken,
    RotateRequest,
)
from controller.api.pages import ApiTokenPage, AuditPage
from controller.api.services import Services, router
from controller.domain.roles import Role
from telemetry.server.query_text import checked_time_s

access_routes: APIRouter = router("/v1/access", "access")
audit_routes: APIRouter = router("/v1/audit", "access")


@access_routes.get("")
def list_api_tokens(
    services: Services,
    page: ApiTokenPage,
    role: Role | None = None,
    state: ApiTokenState | None = None,
) -> list[ApiToken]:
    """List API tokens by name, without their secrets."""
    return page.of(
        token
        for token in services.access.all()
        if role in {None, token.role} and state in {None, token.state}
    )


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
    page: AuditPage,
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
) -> list[AuditEntry]:
    """Return the newest rows of the audit log, the oldest of them first.

    With `sort=row` the newest comes first, and what follows is asked for as in every list. With
    `after` the other conditions are not looked at: then the rows are those of the chain.
    """
    if after is not None:
        return services.audit.after(after, limit=page.request.limit)
    found = services.audit.listed(
        page.request, since_s=checked_time_s(since_s), actor=actor, subject=subject
    )
    return page.answer(found) if page.is_sorted else page.answer(found)[::-1]
