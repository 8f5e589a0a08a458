"""The requests and answers of the HTTP API about enrolment: tokens, and devices that wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from controller.domain.states import AUTO, TokenState, WaitingState
from controller.schemas import Bounds, Request


@dataclass(kw_only=True)
class TokenRequest(Request):
    """A new enrolment token."""

    uses: Annotated[int, Bounds(ge=1, le=1_000_000)] = 1
    expires_in_s: Annotated[int, Bounds(ge=1, le=366 * 86_400)] = 86_400
    labels: dict[str, str] = field(default_factory=dict)
    accept: str = AUTO
    """Which devices enrol by themselves: `auto` for all, `by-hand` for none, else a selector over
    what they say of themselves. The others wait until an operator lets them in."""


@dataclass(kw_only=True)
class Token:
    """The secret, shown once."""

    id: str
    """Its account at the broker, by which it is listed and revoked."""

    token: str
    uses: int
    expires_at_s: float


@dataclass(kw_only=True)
class TokenSummary:
    """What is known of a token; the token itself is kept nowhere."""

    id: str
    """Its account at the broker."""

    state: TokenState
    uses_left: int
    labels: dict[str, str]
    accepts: str
    """`auto`, `by-hand` or a selector, as the token was made."""

    created_at_s: float
    expires_at_s: float
    used_at_s: float | None


@dataclass(kw_only=True)
class WaitingDevice:
    """A device that asked to enrol and is not let in yet: what it said when it asked first."""

    id: str
    """The identifier that it asks for."""

    state: WaitingState
    public_key: str
    serial: str
    """The serial number that it says it has; empty for none."""

    profile_name: str
    architecture: str
    agent_version: str
    labels: dict[str, str]
    """Those that it gets: its own and its token's."""

    token: str
    """The token with which it asked, as `fleet token list` names it."""

    why: str = ""
    """Why it is not let in by itself, as one line."""

    asked_at_s: float
    last_asked_at_s: float
