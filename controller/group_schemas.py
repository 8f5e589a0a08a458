"""The requests and answers of the HTTP API about groups of devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.schemas import Request


@dataclass(kw_only=True)
class GroupRequest(Request):
    """A selector to keep under a name."""

    selector: str


@dataclass(kw_only=True)
class Group:
    """A selector that other selectors name."""

    name: str
    selector: str
    changed_at_s: float


@dataclass(kw_only=True)
class GroupMembers(Group):
    """A group, whom it means now, and what names it."""

    devices: list[str] = field(default_factory=list)
    """The enrolled devices that match now, by identifier."""

    used_by: dict[str, list[str]] = field(default_factory=dict)
    """What names the group, such as `policies`, to their names; of rollouts those in progress."""
