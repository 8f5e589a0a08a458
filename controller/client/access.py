"""Requests about tokens and about the audit log."""

from __future__ import annotations

import builtins

from controller.access_schemas import (
    ApiToken,
    ApiTokenRequest,
    AuditEntry,
    NewApiToken,
    RotateRequest,
)
from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order
from controller.enrolment_schemas import Token, TokenRequest, TokenSummary


class Access(Resource):
    """API tokens."""

    def list(
        self, *, role: str = "", state: str = "", sort: str = "", reverse: bool = False
    ) -> Listing[ApiToken]:
        """List API tokens, without their secrets.

        Args:
            role: Only those with this role.
            state: Only those in this state.
            sort: `name`, `created`, `expires` or `used`; empty for `name`.
            reverse: The other way round.
        """
        params = {"role": role, "state": state, **order(sort, reverse=reverse)}
        return Listing(self._api, "/v1/access", ApiToken, params)

    def get(self, name: str) -> ApiToken:
        """Return an API token, without its secret."""
        return self._api.get(f"/v1/access/{segment(name)}", ApiToken)

    def create(self, request: ApiTokenRequest) -> NewApiToken:
        """Make an API token; its secret is in the answer, and nowhere else."""
        return self._api.send("POST", "/v1/access", NewApiToken, request)

    def rotate(self, name: str, request: RotateRequest) -> NewApiToken:
        """Give an API token a new secret."""
        return self._api.send("POST", f"/v1/access/{segment(name)}/rotate", NewApiToken, request)

    def revoke(self, name: str) -> ApiToken:
        """End an API token from the next request on."""
        return self._api.send("DELETE", f"/v1/access/{segment(name)}", ApiToken)


class Tokens(Resource):
    """Enrolment tokens."""

    def list(
        self, *, state: str = "", sort: str = "", reverse: bool = False
    ) -> Listing[TokenSummary]:
        """List enrolment tokens, without their secrets.

        Args:
            state: Only those in this state.
            sort: `created`, `expires` or `id`; empty for `created`, the newest first.
            reverse: The other way round.
        """
        params = {"state": state, **order(sort, reverse=reverse)}
        return Listing(self._api, "/v1/tokens", TokenSummary, params)

    def create(self, request: TokenRequest) -> Token:
        """Make an enrolment token; its secret is in the answer, and nowhere else."""
        return self._api.send("POST", "/v1/tokens", Token, request)

    def revoke(self, token: str) -> TokenSummary:
        """End an enrolment token."""
        return self._api.send("DELETE", f"/v1/tokens/{segment(token)}", TokenSummary)


class Audit(Resource):
    """Who did what."""

    def list(
        self, *, since_s: float = 0.0, actor: str = "", subject: str = "", reverse: bool = False
    ) -> Listing[AuditEntry]:
        """List rows of the audit log, the newest first.

        Args:
            since_s: Wall time; nothing earlier.
            actor: Only what was done with this API token.
            subject: Only rows whose subject holds this text.
            reverse: The oldest first.
        """
        since = f"{since_s:.3f}" if since_s > 0.0 else ""
        params = {"since_s": since, "actor": actor, "subject": subject}
        sort = order("row", reverse=reverse)
        return Listing(self._api, "/v1/audit", AuditEntry, {**params, **sort})

    def after(self, row: int, *, limit: int) -> builtins.list[AuditEntry]:
        """Return the rows of the chain that follow one, in order.

        Args:
            row: The number of the row; 0 to begin at the start.
            limit: The greatest number.
        """
        params = {"after": str(row), "limit": str(limit)}
        return self._api.get("/v1/audit", list[AuditEntry], params)
