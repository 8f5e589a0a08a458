"""The routes of enrolment tokens; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.pages import TokenPage
from controller.api.services import Services, router
from controller.domain.states import TokenState
from controller.enrolment_schemas import Token, TokenRequest, TokenSummary

token_routes: APIRouter = router("/v1/tokens", "controller")


@token_routes.post("", status_code=201)
def create_token(services: Services, request: TokenRequest) -> Token:
    """Make an enrolment token; it is shown this once."""
    return services.enrolment.create_token(request)


@token_routes.get("")
def list_tokens(
    services: Services, page: TokenPage, state: TokenState | None = None
) -> list[TokenSummary]:
    """List enrolment tokens, the newest first, without their secrets."""
    return page.answer(services.enrolment.tokens(page.request, state))


@token_routes.delete("/{token}")
def revoke_token(services: Services, token: str) -> TokenSummary:
    """End a token: no device enrols with it any more."""
    return services.enrolment.revoke_token(token)
