"""Requests about policies."""

from __future__ import annotations

import builtins
from typing import Any

from controller.client.connection import segment
from controller.client.listing import Resource
from controller.policy_schemas import Policy, PolicyRequest


class Policies(Resource):
    """How devices choose among their variants."""

    def list(self) -> builtins.list[Policy]:
        """Return the policies in the order of precedence."""
        return self._api.get("/v1/policies", list[Policy])

    def get(self, policy: str) -> Policy:
        """Return a policy, and how many devices it has reached."""
        return self._api.get(f"/v1/policies/{segment(policy)}", Policy)

    def set(self, policy: str, request: PolicyRequest | dict[str, Any]) -> Policy:
        """Make a policy, or replace the one of that name."""
        return self._api.send("PUT", f"/v1/policies/{segment(policy)}", Policy, request)

    def remove(self, policy: str) -> Policy:
        """Remove a policy; its devices get the one that then holds for them."""
        return self._api.send("DELETE", f"/v1/policies/{segment(policy)}", Policy)
