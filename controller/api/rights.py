"""Whether a caller may ask for a route, and what the audit log says of its request.

Rules:
- The route is found by the same code that answers the request, so both always mean the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from starlette.routing import Match
from starlette.types import Scope

from controller.domain import roles
from controller.domain.acts import act
from controller.domain.roles import Caller
from controller.errors import ForbiddenError
from controller.store.acting import Act
from wire.clock import Clock

UNCHANGING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Requests with these methods change nothing, and are in no audit log."""

NOWHERE: Final = "(no such path)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    method: str
    path: str | None
    """The path of the route, such as `/v1/devices/{device}`; None if there is no such route."""

    values: dict[str, Any] = field(default_factory=dict)
    """What its path holds in the place of the names."""

    @property
    def route(self) -> str:
        """Method and path, as `controller.domain.roles` has them."""
        return f"{self.method} {self.path or NOWHERE}"


def asked(scope: Scope) -> Asked:
    """Return what a request asks for.

    Args:
        scope: Its ASGI scope, in an application with routes.
    """
    method: str = scope["method"]
    for route in scope["app"].routes:
        match, more = route.matches(scope)
        if match is Match.FULL:
            return Asked(method, getattr(route, "path", None), more.get("path_params", {}))
    return Asked(method, None)


def check(caller: Caller, wanted: Asked) -> None:
    """Refuse what the role of a caller does not allow.

    Args:
        caller: Who asks.
        wanted: For what. A path that does not exist is refused by the application.

    Raises:
        ForbiddenError: It may not.
    """
    if wanted.path is None or roles.may(caller.role, wanted.route):
        return
    raise ForbiddenError(
        f"{act(wanted.route)} needs the role {roles.needed(wanted.route)}; the API token "
        f"{caller.name} is of a{'n' if caller.role[0] in 'ao' else ''} {caller.role}",
        remedy="use another token; an admin makes one with `fleet access create`",
    )


def act_of(caller: Caller, wanted: Asked, clock: Clock) -> Act | None:
    """Return what the audit log is to say of a request; None if that changes nothing."""
    if wanted.method in UNCHANGING:
        return None
    return Act(
        at_ms=int(clock.now_s() * 1000),
        actor=caller.name,
        role=caller.role,
        action=wanted.route,
        subject=" ".join(str(value) for value in wanted.values.values()),
    )
