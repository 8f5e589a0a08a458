"""Lets pages of other origins ask the endpoint from a browser (CORS).

A browser asks first with OPTIONS, without the token, whether a page may send its request. Of what
comes back it shows the page only what the answer allows.

Rules:
- Only origins that are named are allowed, compared as they are; `*` allows all.
- No answer allows credentials: clients are known by a token, which a page sends itself.
- Each answer says which pages may read it, refusals too: a page must see what is wrong.
- A request that only looks like such a question needs the token as before.

Source:
    The Fetch standard, section 3.2 (HTTP extensions).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Final

from agent.serve.advice import HEADER
from agent.serve.frames import Reply
from agent.serve.http.request import RefusedRequestError
from agent.serve.http.server import Api

ANY: Final = "*"
ASKED_METHOD: Final = "access-control-request-method"
EXPOSED: Final = f"Inference-Header-Content-Length, {HEADER}, Location, Retry-After"
"""Headers of answers that pages may read; a browser hides all that it does not know."""

PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Content-Encoding, Inference-Header-Content-Length, "
        "Inference-Timeout-Ms"
    ),
    "Access-Control-Max-Age": "600",
}


class Origins:
    """The origins whose pages may ask.

    Args:
        allowed: The origins, or `*` alone.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(allowed)
        self._any = ANY in self._allowed

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request comes from a page that may ask.

        Args:
            headers: Those of the request, names in lower case.
        """
        return self._any or headers.get("origin") in self._allowed

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers that say who may read an answer.

        Args:
            headers: Those of the request, names in lower case.
        """
        if self._any:
            return {"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": EXPOSED}
        # A cache must not give the answer for one origin to another.
        vary = {"Vary": "Origin"}
        if not self.allows(headers):
            return vary
        return vary | {
            "Access-Control-Allow-Origin": headers["origin"],
            "Access-Control-Expose-Headers": EXPOSED,
        }


class CrossOriginApi:
    """Answers the questions of browsers, and leaves all else to another API.

    Args:
        api: Answers all else.
        origins: Whose pages may ask.
    """

    def __init__(self, api: Api, origins: Origins) -> None:
        self._api = api
        self._origins = origins

    def refusal(self, target: str, headers: Mapping[str, str]) -> RefusedRequestError | None:
        """Refuse a client that may not ask for this; None if it may."""
        return None if _may_be_preflight(headers) else self._api.refusal(target, headers)

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None = None,
    ) -> Reply:
        """Answer a request that `refusal` has not refused."""
        if not _may_be_preflight(headers):
            return self._api.answer(method, target, headers, body, connection)
        if method == "OPTIONS":
            return self._preflight(headers)
        refusal = self._api.refusal(target, headers)  # the method was not known before
        if refusal is not None:
            return Reply.refusal(refusal.status, refusal.message, refusal.headers)
        return self._api.answer(method, target, headers, body, connection)

    def _preflight(self, headers: Mapping[str, str]) -> Reply:
        if not self._origins.allows(headers):
            origin = headers["origin"][:80]
            return Reply.refusal(403, f"allow_origins of this endpoint does not name {origin}")
        return Reply(status=200, headers=dict(PREFLIGHT), body=memoryview(b""))


def _may_be_preflight(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser may have sent a request by itself; it then has no body."""
    return (
        ASKED_METHOD in headers
        and "origin" in headers
        and "transfer-encoding" not in headers
        and headers.get("content-length", "0").strip("0") == ""
    )
