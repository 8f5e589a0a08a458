"""The routes of groups of devices; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.pages import GroupPage
from controller.api.services import Services, router
from controller.group_schemas import Group, GroupMembers, GroupRequest

group_routes: APIRouter = router("/v1/groups", "devices")


@group_routes.get("")
def list_groups(services: Services, page: GroupPage) -> list[Group]:
    """List the groups, by name."""
    return page.of(services.groups.all())


@group_routes.get("/{group}")
def get_group(services: Services, group: str) -> GroupMembers:
    """Return a group, the enrolled devices that it means now, and what names it."""
    return services.groups.get(group)


@group_routes.put("/{group}")
def set_group(services: Services, group: str, request: GroupRequest) -> GroupMembers:
    """Make a group or replace the one of that name; selectors name it as `group:NAME`."""
    return services.groups.put(group, request)


@group_routes.delete("/{group}")
def remove_group(services: Services, group: str) -> Group:
    """Remove a group that nothing names, and return it as it was."""
    return services.groups.remove(group)
