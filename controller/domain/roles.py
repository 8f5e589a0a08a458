"""Roles of API tokens, and which role may ask for what. Pure.

Rules:
- Every route of the API stands in the table, and a route that does not is for `admin` alone.
- A viewer changes nothing, and sees neither content of models nor what devices captured.
- Who may make or change a rollout may not approve it: that needs another role, and
  `controller.services.rollouts` also asks for another name.
- Only an admin makes and ends API tokens: no token gives itself more than it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

HOME: Final = "home"
"""The name of the token in the controller's own directory."""

METRICS: Final = "metrics"
"""The name of the token that opens the metrics alone."""

RESERVED_NAMES: Final = frozenset({HOME, METRICS})


class Role(StrEnum):
    """What an API token may be used for."""

    VIEWER = "viewer"
    """See everything that is no secret."""

    OPERATOR = "operator"
    """Work with devices, releases, rollouts, policies, alerts, measurements, captures, shadows."""

    APPROVER = "approver"
    """See what a viewer sees, and approve the next stage of a rollout."""

    ADMIN = "admin"
    """Everything, also API tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as its token says."""

    name: str
    role: Role


_SEE: Final = frozenset(Role)
_WORK: Final = frozenset({Role.OPERATOR, Role.ADMIN})
_APPROVE: Final = frozenset({Role.APPROVER, Role.ADMIN})
_RULE: Final = frozenset({Role.ADMIN})

RIGHTS: Final[Mapping[str, frozenset[Role]]] = {
    "GET /openapi.json": _SEE,
    "HEAD /openapi.json": _SEE,
    "GET /v1/health": _SEE,  # which needs no token
    "GET /metrics": _SEE,
    "GET /v1/access": _RULE,
    "POST /v1/access": _RULE,
    "GET /v1/access/{name}": _RULE,
    "DELETE /v1/access/{name}": _RULE,
    "POST /v1/access/{name}/rotate": _RULE,
    "GET /v1/audit": _SEE,
    "GET /v1/tokens": _SEE,
    "POST /v1/tokens": _WORK,
    "DELETE /v1/tokens/{token}": _WORK,
    "GET /v1/release-drift": _SEE,
    "GET /v1/registrations": _SEE,
    "POST /v1/registrations": _WORK,
    "DELETE /v1/registrations": _WORK,
    "GET /v1/waiting": _SEE,
    "POST /v1/waiting/{device}/accept": _WORK,
    "POST /v1/waiting/{device}/refuse": _WORK,
    "GET /v1/devices": _SEE,
    "GET /v1/devices/{device}": _SEE,
    "PATCH /v1/devices/{device}": _WORK,
    "POST /v1/devices/labels": _WORK,
    "GET /v1/devices/{device}/desired": _WORK,  # an order, to be carried to the device
    "GET /v1/devices/{device}/events": _SEE,
    "PUT /v1/blobs/{sha256}": _WORK,
    "HEAD /v1/blobs/{sha256}": _SEE,
    "GET /v1/blobs/{sha256}": _WORK,  # the models themselves
    "POST /v1/releases": _WORK,
    "GET /v1/releases": _SEE,
    "GET /v1/releases/{ref}": _SEE,
    "GET /v1/releases/{ref}/preflight": _SEE,
    "POST /v1/releases/{ref}/revoke": _WORK,
    "POST /v1/rollouts": _WORK,
    "GET /v1/rollouts": _SEE,
    "POST /v1/rollouts/plan": _WORK,
    "POST /v1/rollouts/rehearse": _WORK,  # keeps a processor busy
    "GET /v1/rollouts/{rollout}": _SEE,
    "GET /v1/rollouts/{rollout}/follow-ups": _SEE,
    "GET /v1/rollouts/{rollout}/gates": _SEE,
    "GET /v1/rollouts/{rollout}/devices/{device}": _SEE,
    "POST /v1/rollouts/{rollout}/pause": _WORK,
    "POST /v1/rollouts/{rollout}/resume": _WORK,
    "POST /v1/rollouts/{rollout}/approve": _APPROVE,
    "POST /v1/rollouts/{rollout}/abort": _WORK,
    "POST /v1/rollouts/{rollout}/rollback": _WORK,
    "POST /v1/rollouts/{rollout}/retry": _WORK,
    "POST /v1/rollouts/{rollout}/add": _WORK,
    "POST /v1/rollouts/{rollout}/exclude": _WORK,
    "GET /v1/groups": _SEE,
    "GET /v1/groups/{group}": _SEE,
    "PUT /v1/groups/{group}": _WORK,
    "DELETE /v1/groups/{group}": _WORK,
    "GET /v1/policies": _SEE,
    "GET /v1/policies/{policy}": _SEE,
    "PUT /v1/policies/{policy}": _WORK,
    "DELETE /v1/policies/{policy}": _WORK,
    "GET /v1/telemetry/query": _SEE,
    "GET /v1/telemetry/compare": _SEE,
    "GET /v1/telemetry/drift": _SEE,
    "GET /v1/telemetry/drift/devices": _SEE,
    "GET /v1/telemetry/events": _SEE,
    "GET /v1/telemetry/dead-letters": _SEE,
    "GET /v1/telemetry/devices": _SEE,
    "GET /v1/telemetry/doubts": _SEE,
    "GET /v1/telemetry/labels": _SEE,
    "POST /v1/telemetry/reports/{device}": _WORK,
    "GET /v1/telemetry/reports/{device}/{request}": _SEE,
    "GET /v1/telemetry/metrics": _SEE,
    "GET /v1/telemetry/saved": _SEE,
    "GET /v1/telemetry/saved/{query}": _SEE,
    "PUT /v1/telemetry/saved/{query}": _WORK,
    "DELETE /v1/telemetry/saved/{query}": _WORK,
    "GET /v1/telemetry/export/measurements": _SEE,
    "GET /v1/telemetry/export/events": _SEE,
    "GET /v1/alerts": _SEE,
    "GET /v1/alerts/rules": _SEE,
    "PUT /v1/alerts/rules": _WORK,
    "GET /v1/alerts/rules/{name}": _SEE,
    "POST /v1/alerts/rules/{name}/ack": _WORK,
    "POST /v1/alerts/test": _WORK,
    "POST /v1/alerts/test-webhooks": _WORK,
    "POST /v1/measurements": _WORK,
    "GET /v1/measurements": _SEE,
    "GET /v1/measurements/figures": _SEE,
    "GET /v1/measurements/devices": _SEE,
    "GET /v1/measurements/{measurement}": _SEE,
    "POST /v1/measurements/{measurement}/cancel": _WORK,
    "GET /v1/metadata": _SEE,
    "GET /v1/metadata/files": _SEE,
    "POST /v1/metadata": _WORK,  # signatures decide, not who sends them
    "GET /v1/models": _SEE,
    "DELETE /v1/models/{model}": _WORK,
    "GET /v1/shadows": _SEE,
    "GET /v1/shadows/{model}": _SEE,
    "PUT /v1/shadows/{model}": _WORK,
    "DELETE /v1/shadows/{model}": _WORK,
    "GET /v1/captures": _SEE,
    "PUT /v1/captures/{model}": _WORK,
    "DELETE /v1/captures/{model}": _WORK,
    "GET /v1/captures/{model}/samples": _WORK,
    "GET /v1/captures/{model}/samples/{device}/{sample}": _WORK,
}
"""Method and path of each route: the roles that may ask for it."""


def may(role: Role, route: str) -> bool:
    """Tell whether a role may ask for a route.

    Args:
        role: The role.
        route: Method and path as in the table, such as `GET /v1/devices/{device}`.
    """
    return role in RIGHTS.get(route, _RULE)


def needed(route: str) -> str:
    """Return which roles may ask for a route, in words such as `operator or admin`."""
    roles = RIGHTS.get(route, _RULE)
    return " or ".join(role for role in Role if role in roles)
