"""The routes of the HTTP API that concern the fleet's policies."""

from __future__ import annotations

from fastapi import APIRouter

from controller.schemas import Policy, PolicyRequest
from controller.services.policies import Policies


def policy_routes(policies: Policies) -> APIRouter:
    """Return the routes for policies."""
    router = APIRouter(prefix="/v1/policies", tags=["policies"])

    @router.get("")
    def list_policies() -> list[Policy]:
        """List policies in the order of precedence: the first that means a device holds for it."""
        return policies.all()

    @router.get("/{policy}")
    def get_policy(policy: str) -> Policy:
        """Return a policy and how many devices it has reached."""
        return policies.get(policy)

    @router.put("/{policy}")
    def put_policy(policy: str, request: PolicyRequest) -> Policy:
        """Make a policy, or put it in the place of the one of that name. Again changes nothing.

        Devices hear of it within seconds, and at their next connection when they are away.
        """
        return policies.put(policy, request)

    @router.delete("/{policy}")
    def remove_policy(policy: str) -> Policy:
        """Remove a policy; its devices get the one that then holds for them."""
        return policies.remove(policy)

    return router
