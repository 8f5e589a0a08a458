"""The routes of policies; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.policy_schemas import Policy, PolicyRequest

policy_routes: APIRouter = router("/v1/policies", "policies")


@policy_routes.get("")
def list_policies(services: Services) -> list[Policy]:
    """List policies in the order of precedence: a device gets the first that matches it."""
    return services.policies.all()


@policy_routes.get("/{policy}")
def get_policy(services: Services, policy: str) -> Policy:
    """Return a policy and how many devices it has reached."""
    return services.policies.get(policy)


@policy_routes.put("/{policy}")
def put_policy(services: Services, policy: str, request: PolicyRequest) -> Policy:
    """Make a policy or replace the one of that name. A second time changes nothing.

    Devices hear of it within seconds, and at their next connection when they are away.
    """
    return services.policies.put(policy, request)


@policy_routes.delete("/{policy}")
def remove_policy(services: Services, policy: str) -> Policy:
    """Remove a policy; its devices get the one that then holds for them."""
    return services.policies.remove(policy)
