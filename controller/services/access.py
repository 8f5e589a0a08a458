"""API tokens: who may ask the API for what.

Rules:
- A token is shown once; the database keeps its digest. Its name is given once and for all, because
  the audit log names it.
- Every token ends. A revoked one is refused from the next request on, an expired one by the clock.
- The token in the controller's directory (`home`) is an admin's. It is in no table and never ends:
  who can read that directory can do everything anyway, and it works when no other one does.
- The tokens are held in memory and read anew once a second at most, and at once when this
  controller changes one. So an invented token costs a digest, and no look into the database.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.access_schemas import (
    ApiToken,
    ApiTokenRequest,
    ApiTokenState,
    NewApiToken,
    RotateRequest,
)
from controller.domain.api_tokens import SECRET_BYTES, digest_of, is_token, token_of
from controller.domain.names import checked_name
from controller.domain.roles import HOME, METRICS, RESERVED_NAMES, Caller, Role
from controller.errors import (
    ConflictError,
    DatabaseError,
    EndedTokenError,
    InvalidRequestError,
)
from controller.store import acting, api_tokens
from controller.store.access_tables import ApiTokenRow
from controller.store.database import Database
from wire.clock import Clock

READ_EVERY_S: Final = 1.0
"""So long a change by another controller on the same database may be unknown here."""

NOTE_USE_EVERY_S: Final = 600.0
REMEMBER_ENDED_S: Final = 30 * 86_400.0
"""So long the holder of a token that has ended is told so, and not only that it is wrong."""

_SHOWN: Final = (
    "name", "rate_per_s", "created_by", "created_at_s", "expires_at_s", "used_at_s",
    "revoked_at_s", "old_until_s",
)  # fmt: skip
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken:
    """What is held of a token, under its digest."""

    caller: Caller
    rate_per_s: float | None
    """None: it may be used as often as its holder likes."""

    ends_at_s: float
    revoked: bool = False


class Access:
    """Makes, ends and knows API tokens.

    Args:
        database: The control state.
        clock: Wall time and durations.
        home_token: The token in the controller's directory.
        metrics_token: What opens the metrics alone; None if there is none.
    """

    def __init__(
        self, database: Database, clock: Clock, *, home_token: str, metrics_token: str | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._home = home_token.encode()
        self._metrics = None if metrics_token is None else metrics_token.encode()
        self._reading = threading.Lock()
        self._known: Mapping[str, KnownToken] = {}
        self._read_at_s = float("-inf")
        self._used_at_s: dict[str, float] = {}
        self._read()

    def home(self, shown: bytes) -> KnownToken | None:
        """Return the token of the controller's directory, if it is shown; in constant time."""
        if not hmac.compare_digest(shown, self._home):
            return None
        return _endless(HOME, Role.ADMIN)

    def metrics(self, shown: bytes) -> KnownToken | None:
        """Return the token that opens the metrics alone, if it is shown; in constant time."""
        if self._metrics is None or not hmac.compare_digest(shown, self._metrics):
            return None
        return _endless(METRICS, Role.VIEWER)

    @property
    def has_metrics_token(self) -> bool:
        """Whether the metrics have a token of their own."""
        return self._metrics is not None

    def is_old(self) -> bool:
        """Tell whether `refresh` is to be called before `find`."""
        return self._clock.monotonic_s() - self._read_at_s >= READ_EVERY_S

    def refresh(self) -> None:
        """Read the tokens anew, unless another thread does so now.

        Raises:
            DatabaseError: The database does not answer.
        """
        if self._reading.acquire(blocking=False):
            try:
                self._read_locked()
            finally:
                self._reading.release()

    def find(self, shown: bytes) -> KnownToken | None:
        """Return a token that can be used now.

        Args:
            shown: As the caller sent it.

        Returns:
            The token; None if it is not known.

        Raises:
            EndedTokenError: It has expired or was revoked.
        """
        text = shown.decode("ascii", "replace")
        if not is_token(text):
            return None
        known = self._known.get(digest_of(text))
        if known is None:
            return None
        name = known.caller.name
        remedy = f"an admin makes another: fleet access create NAME --role {known.caller.role}"
        if known.revoked:
            raise EndedTokenError(f"the API token {name} was revoked", remedy=remedy)
        if self._clock.now_s() >= known.ends_at_s:
            raise EndedTokenError(f"the API token {name} has expired", remedy=remedy)
        return known

    def is_use_due(self, name: str) -> bool:
        """Tell whether `note_use` is to be called."""
        last_s = self._used_at_s.get(name, float("-inf"))
        return self._clock.now_s() - last_s >= NOTE_USE_EVERY_S

    def note_use(self, name: str) -> None:
        """Write down that a token is used. If the database does not answer, nothing is."""
        self._used_at_s[name] = now_s = self._clock.now_s()
        with contextlib.suppress(DatabaseError), self._database.transaction() as transaction:
            api_tokens.note_use(transaction, name, now_s=now_s)

    def create(self, request: ApiTokenRequest) -> NewApiToken:
        """Make a token.

        Args:
            request: Its name, role, life and rate.

        Returns:
            The token with its secret, which is kept nowhere.

        Raises:
            InvalidRequestError: No token can have that name.
            ConflictError: There is or was one of that name, or there are too many.
        """
        name = checked_name(request.name, "an API token")
        if name in RESERVED_NAMES:
            raise InvalidRequestError(
                f"{name!r} is the name of a token in a file", remedy="choose another name"
            )
        now_s = self._clock.now_s()
        token = token_of(secrets.token_bytes(SECRET_BYTES))
        row = ApiTokenRow(
            name=name,
            role=request.role,
            sha256=digest_of(token),
            old_sha256=None,
            old_until_s=None,
            rate_per_s=request.rate_per_s,
            created_by=acting.actor(),
            created_at_s=now_s,
            expires_at_s=now_s + request.expires_in_s,
            used_at_s=None,
            revoked_at_s=None,
        )
        with self._database.transaction() as transaction:
            api_tokens.add(transaction, row, now_s=now_s)
            acting.about(f"{name} {request.role}")
        self._read()
        _log.info("the API token %s with the role %s is made", name, request.role)
        return _with_secret(row, token, now_s)

    def all(self) -> list[ApiToken]:
        """Return the tokens by name, also those that have ended.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = api_tokens.everyone(transaction)
        return [_shown(row, self._clock.now_s()) for row in rows]

    def get(self, name: str) -> ApiToken:
        """Return a token.

        Args:
            name: Its name.

        Returns:
            The token without its secret.

        Raises:
            UnknownApiTokenError: There is none of that name.
        """
        with self._database.reading() as transaction:
            return _shown(api_tokens.get(transaction, name), self._clock.now_s())

    def revoke(self, name: str) -> ApiToken:
        """End a token now; a second time changes nothing.

        Args:
            name: Its name.

        Returns:
            The token.

        Raises:
            UnknownApiTokenError: There is none of that name.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = api_tokens.get(transaction, name, lock=True)
            if row.revoked_at_s is None:
                row.revoked_at_s = now_s
        self._read()
        _log.info("the API token %s is revoked", name)
        return _shown(row, now_s)

    def rotate(self, name: str, request: RotateRequest) -> NewApiToken:
        """Give a token a new secret.

        Args:
            name: Its name.
            request: How long the old secret counts, and perhaps another end.

        Returns:
            The token with its new secret, which is kept nowhere.

        Raises:
            UnknownApiTokenError: There is none of that name.
            ConflictError: It was revoked, or has expired and gets no other end.
        """
        now_s = self._clock.now_s()
        token = token_of(secrets.token_bytes(SECRET_BYTES))
        with self._database.transaction() as transaction:
            row = api_tokens.get(transaction, name, lock=True)
            if request.expires_in_s is not None:
                row.expires_at_s = now_s + request.expires_in_s
            state = _state(row, now_s)
            if state != "valid":
                again = state == "expired"
                raise ConflictError(
                    f"the API token {name} {'has expired' if again else 'was revoked'}",
                    remedy="give it another end: --expires 90d" if again else "make another one",
                )
            row.old_sha256, row.sha256 = row.sha256, digest_of(token)
            row.old_until_s = now_s + request.overlap_s
        self._read()
        _log.info("the API token %s has a new secret", name)
        return _with_secret(row, token, now_s)

    def _read(self) -> None:
        with self._reading:
            self._read_locked()

    def _read_locked(self) -> None:
        read_at_s, now_s = self._clock.monotonic_s(), self._clock.now_s()
        with self._database.reading() as transaction:
            rows = api_tokens.ended_after(transaction, now_s - REMEMBER_ENDED_S)
        known: dict[str, KnownToken] = {}
        for row in rows:
            if row.old_sha256 is not None and row.old_until_s is not None:
                known[row.old_sha256] = _known(row, min(row.old_until_s, row.expires_at_s))
            known[row.sha256] = _known(row, row.expires_at_s)
        self._known, self._read_at_s = known, read_at_s


def _endless(name: str, role: Role) -> KnownToken:
    return KnownToken(caller=Caller(name=name, role=role), rate_per_s=None, ends_at_s=float("inf"))


def _known(row: ApiTokenRow, ends_at_s: float) -> KnownToken:
    return KnownToken(
        caller=Caller(name=row.name, role=Role(row.role)),
        rate_per_s=row.rate_per_s,
        ends_at_s=ends_at_s,
        revoked=row.revoked_at_s is not None,
    )


def _state(row: ApiTokenRow, now_s: float) -> ApiTokenState:
    if row.revoked_at_s is not None:
        return "revoked"
    return "expired" if now_s >= row.expires_at_s else "valid"


def _shown(row: ApiTokenRow, now_s: float) -> ApiToken:
    same = {name: getattr(row, name) for name in _SHOWN}
    return ApiToken(role=Role(row.role), state=_state(row, now_s), **same)


def _with_secret(row: ApiTokenRow, token: str, now_s: float) -> NewApiToken:
    return NewApiToken(**vars(_shown(row, now_s)), token=token)
