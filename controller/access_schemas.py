"""The requests and answers of the HTTP API about its own tokens, and about the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from controller.domain.roles import Role
from controller.schemas import Bounds, Request

DAY_S: Final = 86_400
MAX_LIFE_S: Final = 3 * 366 * DAY_S
MAX_OVERLAP_S: Final = 30 * DAY_S
MAX_RATE_PER_S: Final = 10_000
MIN_RATE_PER_S: Final = 0.01
DEFAULT_LIFE_S: Final = 90 * DAY_S
DEFAULT_RATE_PER_S: Final = 100.0
"""No command asks so often, and a hundred dashboards do not."""

ApiTokenState = Literal["valid", "expired", "revoked"]


@dataclass(kw_only=True)
class ApiTokenRequest(Request):
    """A new API token."""

    name: str
    role: Role
    expires_in_s: Annotated[int, Bounds(ge=60, le=MAX_LIFE_S)] = DEFAULT_LIFE_S
    rate_per_s: Annotated[float, Bounds(ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S)] = DEFAULT_RATE_PER_S
    """Requests a second in the long run; ten seconds' worth may come at once."""


@dataclass(kw_only=True)
class RotateRequest(Request):
    """A new secret for an API token."""

    overlap_s: Annotated[int, Bounds(ge=0, le=MAX_OVERLAP_S)] = 0
    """How long the old secret counts, too."""

    expires_in_s: Annotated[int, Bounds(ge=60, le=MAX_LIFE_S)] | None = None
    """None: the token ends when it would have ended before."""


@dataclass(kw_only=True)
class ApiToken:
    """An API token without its secret."""

    name: str
    role: Role
    state: ApiTokenState
    rate_per_s: float
    created_by: str
    created_at_s: float
    expires_at_s: float
    used_at_s: float | None
    """When it was used last, to some ten minutes."""

    revoked_at_s: float | None
    old_until_s: float | None
    """Until when the secret before the last rotation counts, too."""


@dataclass(kw_only=True)
class NewApiToken(ApiToken):
    """An API token with its secret, which is shown this once."""

    token: str


@dataclass(kw_only=True)
class AuditEntry:
    """A row of the audit log; `controller.domain.audit_chain` says what its hash is over."""

    sequence: int
    at_ms: int
    actor: str
    role: str
    action: str
    subject: str
    outcome: str
    hash: str
