"""What routes of the API do, in words, for people whose role may not ask for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ACTS: Final[Mapping[str, str]] = {
    "GET /v1/access": "listing API tokens",
    "POST /v1/access": "making an API token",
    "GET /v1/access/{name}": "showing an API token",
    "DELETE /v1/access/{name}": "ending an API token",
    "POST /v1/access/{name}/rotate": "giving an API token a new secret",
    "POST /v1/tokens": "making an enrolment token",
    "DELETE /v1/tokens/{token}": "ending an enrolment token",
    "POST /v1/registrations": "registering devices",
    "DELETE /v1/registrations": "removing a registration",
    "POST /v1/waiting/{device}/accept": "letting a device in",
    "POST /v1/waiting/{device}/refuse": "refusing a device",
    "PATCH /v1/devices/{device}": "changing a device",
    "POST /v1/devices/labels": "changing labels",
    "GET /v1/devices/{device}/desired": "exporting what a device should run",
    "PUT /v1/blobs/{sha256}": "uploading a package",
    "GET /v1/blobs/{sha256}": "downloading a package",
    "POST /v1/releases": "publishing a release",
    "POST /v1/releases/{ref}/revoke": "revoking a release",
    "POST /v1/rollouts": "making a rollout",
    "POST /v1/rollouts/plan": "planning a rollout",
    "POST /v1/rollouts/rehearse": "rehearsing a rollout",
    "POST /v1/rollouts/{rollout}/pause": "pausing a rollout",
    "POST /v1/rollouts/{rollout}/resume": "resuming a rollout",
    "POST /v1/rollouts/{rollout}/approve": "approving a rollout",
    "POST /v1/rollouts/{rollout}/abort": "aborting a rollout",
    "POST /v1/rollouts/{rollout}/rollback": "rolling a rollout back",
    "POST /v1/rollouts/{rollout}/retry": "trying the devices of a rollout again",
    "POST /v1/rollouts/{rollout}/add": "adding devices to a rollout",
    "POST /v1/rollouts/{rollout}/exclude": "excluding devices from a rollout",
    "PUT /v1/groups/{group}": "setting a group",
    "DELETE /v1/groups/{group}": "removing a group",
    "PUT /v1/policies/{policy}": "setting a policy",
    "DELETE /v1/policies/{policy}": "removing a policy",
    "POST /v1/telemetry/reports/{device}": "asking a device to report",
    "PUT /v1/telemetry/saved/{query}": "saving a query",
    "DELETE /v1/telemetry/saved/{query}": "removing a saved query",
    "PUT /v1/alerts/rules": "setting the rules of alerts",
    "POST /v1/alerts/rules/{name}/ack": "acknowledging alerts",
    "POST /v1/alerts/test": "trying rules of alerts on the past",
    "POST /v1/alerts/test-webhooks": "testing webhooks",
    "POST /v1/measurements": "asking devices to measure",
    "POST /v1/measurements/{measurement}/cancel": "cancelling a measurement",
    "POST /v1/metadata": "handing in signed metadata",
    "DELETE /v1/models/{model}": "removing a model",
    "PUT /v1/shadows/{model}": "starting a shadow",
    "DELETE /v1/shadows/{model}": "stopping a shadow",
    "PUT /v1/captures/{model}": "starting a capture",
    "DELETE /v1/captures/{model}": "stopping a capture",
    "GET /v1/captures/{model}/samples": "reading captured samples",
    "GET /v1/captures/{model}/samples/{device}/{sample}": "reading a captured sample",
}
"""Method and path of each route that not all roles may ask for: what it does."""


def act(route: str) -> str:
    """Return what a route does, such as `approving a rollout`; without words, the route.

    Args:
        route: Method and path as in the table.
    """
    return ACTS.get(route, route)
