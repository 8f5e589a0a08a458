"""The routes of devices that join and leave rollouts; rules as in `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.rollout_control_schemas import JoinRequest, LeaveRequest, MembersChange

member_routes: APIRouter = router("/v1/rollouts", "rollouts")


@member_routes.post("/{rollout}/add")
def add_devices(services: Services, rollout: str, request: JoinRequest) -> MembersChange:
    """Let devices join a rollout that goes on; they start after all others."""
    return services.membership.add(rollout, request)


@member_routes.post("/{rollout}/exclude")
def exclude_devices(services: Services, rollout: str, request: LeaveRequest) -> MembersChange:
    """Take devices out of a rollout that have not started; say what becomes of the others."""
    return services.membership.exclude(rollout, request)
