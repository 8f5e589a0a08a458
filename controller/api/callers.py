"""Who asks the API: finds the caller of a request by its token, and bounds how often it may ask.

Rules:
- Nobody without a right token gets a thread, or more than one look into the database a second.
- A wrong token is refused, whatever came before it; after many from one address the answer asks it
  to wait. A right token is never refused for what others at its address do.
- A token that asks too often is told when to ask again. The token of the controller's directory has
  no limit: it must work when something else floods the API.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from fastapi.concurrency import run_in_threadpool

from controller.api.places import client_of
from controller.domain.roles import Caller
from controller.errors import EndedTokenError, RateLimitedError, UnauthorizedError, WrongTokensError
from controller.services.access import Access, KnownToken
from controller.services.api_rates import (
    BURST_S,
    MAX_ADDRESSES,
    MAX_TOKENS,
    WRONG_BURST,
    WRONG_PER_S,
    Rates,
)
from wire.clock import Clock

METRICS_PATH: Final = "/metrics"
"""This path may be read with a token of its own, too."""

TOLD_PER_S: Final = 1 / 60
TOLD_BURST: Final = 5.0
"""Wrong tokens that the log tells of, those of all addresses together."""

_log = logging.getLogger(__name__)


class Callers:
    """Finds who asks.

    Args:
        access: The tokens.
        clock: Durations.
    """

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._rates = Rates(clock, MAX_TOKENS)
        self._wrong = Rates(clock, MAX_ADDRESSES)
        self._told = Rates(clock, 1)

    async def find(self, scope: Mapping[str, Any], header: bytes) -> Caller:
        """Return the caller of a request.

        Args:
            scope: The ASGI scope of the request.
            header: Its `Authorization`.

        Returns:
            The caller.

        Raises:
            UnauthorizedError: No token, or one that does not count.
            EndedTokenError: It has expired or was revoked.
            RateLimitedError: The token, or the address with wrong ones, asks too often.
            DatabaseError: The database does not answer.
        """
        scheme, _, shown = header.partition(b" ")
        try:
            known = await self._known(scope["path"], shown.strip())
        except EndedTokenError:
            self._note_wrong(scope)
            raise
        if known is None or scheme.lower() != b"bearer":
            self._note_wrong(scope)
            raise self._refusal(scope["path"])
        self._take_turn(known)
        if known.rate_per_s is not None and self._access.is_use_due(known.caller.name):
            await run_in_threadpool(self._access.note_use, known.caller.name)
        return known.caller

    async def _known(self, path: str, shown: bytes) -> KnownToken | None:
        found = self._access.home(shown)
        if path == METRICS_PATH:
            found = self._access.metrics(shown) or found
        if found is not None:
            return found
        if self._access.is_old():
            await run_in_threadpool(self._access.refresh)
        return self._access.find(shown)

    def _take_turn(self, known: KnownToken) -> None:
        if known.rate_per_s is None:
            return
        burst = max(known.rate_per_s * BURST_S, 1.0)
        wait_s = self._rates.take(known.caller.name, known.rate_per_s, burst)
        if wait_s > 0.0:
            raise RateLimitedError(
                f"the API token {known.caller.name} asks more often than "
                f"{known.rate_per_s:g} times a second",
                remedy="ask less often, or use a token with a greater --rate",
                retry_after_s=wait_s,
            )

    def _note_wrong(self, scope: Mapping[str, Any]) -> None:
        address = client_of((scope.get("client") or ("",))[0])
        if self._told.take("", TOLD_PER_S, TOLD_BURST) == 0.0:
            _log.warning("a request from %s had no right API token", address)
        wait_s = self._wrong.take(address, WRONG_PER_S, WRONG_BURST)
        if wait_s > 0.0:
            raise WrongTokensError(
                "there were too many wrong API tokens from this address",
                remedy="use a right one: that is not refused",
                retry_after_s=wait_s,
            )

    def _refusal(self, path: str) -> UnauthorizedError:
        if path == METRICS_PATH and self._access.has_metrics_token:
            return UnauthorizedError(
                "the token of the metrics is missing or wrong",
                remedy="send the content of the file prometheus.token_file as a bearer token",
            )
        return UnauthorizedError(
            "the API token is missing or wrong",
            remedy="send the content of api.token as a bearer token, or one that "
            "`fleet access create` made",
        )
