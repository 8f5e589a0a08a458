"""The paths of deferrable requests: a ticket instead of an answer, and the answer for the ticket.

| request | answer |
|---|---|
| inference with `parameters.deferrable` | 202, `Location: /v2/deferred/TICKET` |
| `GET /v2/deferred/TICKET` | 202 while it waits; then what the inference would have got; 404 |
| `DELETE /v2/deferred/TICKET` | 200, and it is forgotten; 404 |

Rules:
- A ticket is unknown after its answer was kept for its time, and after DELETE.
- A model that does not serve any more is 410 here, because 404 means an unknown ticket.

Source:
    RFC 9110, 15.3.3: 202 with a pointer to a status monitor.
"""

from __future__ import annotations

import re
from typing import Final

from agent.serve.deferred.queue import RETRY_AFTER_S, DeferredQueue
from agent.serve.errors import DeferralError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from wire.codec import to_json

PREFIX: Final = "/v2/deferred/"
UNKNOWN: Final = "there is no such ticket"
NO_QUEUE: Final = "this endpoint defers no requests"
_TICKET: Final = re.compile(r"/v2/deferred/([0-9a-f]{32})")


class DeferredApi:
    """Answers the paths of deferrable requests.

    Args:
        queue: Keeps them; None if this endpoint defers none.
    """

    def __init__(self, queue: DeferredQueue | None) -> None:
        self._queue = queue

    def accept(self, call: InferenceCall, *, durable: bool) -> Reply:
        """Take a deferrable request.

        Args:
            call: The request.
            durable: Whether it must survive a restart.

        Returns:
            202 with the ticket, or a refusal.
        """
        if self._queue is None:
            return Reply.refusal(501, NO_QUEUE)
        try:
            ticket = self._queue.accept(call, durable=durable)
        except DeferralError as exc:
            return _refusal(exc)
        return _document(202, {"ticket": ticket, "state": "waiting"}, waits=True, ticket=ticket)

    def answer(self, method: str, path: str) -> Reply:
        """Answer a request for a ticket.

        Args:
            method: HTTP method.
            path: Its path, which begins with `PREFIX`.

        Returns:
            The answer.
        """
        match = _TICKET.fullmatch(path)
        if match is None:
            return Reply.refusal(404, UNKNOWN)
        if method not in {"GET", "HEAD", "DELETE"}:
            return Reply.refusal(
                405, "a ticket takes GET or DELETE", {"Allow": "GET, HEAD, DELETE"}
            )
        try:
            if method == "DELETE":
                reply = self._forget(match[1])
            else:
                reply = self._find(match[1], fetched=method == "GET")
        except DeferralError as exc:
            return _refusal(exc)
        return reply or Reply.refusal(404, UNKNOWN)

    def _find(self, ticket: str, *, fetched: bool) -> Reply | None:
        found = self._queue.find(ticket, fetched=fetched) if self._queue is not None else None
        if found is None or found.reply is not None:
            return found.reply if found is not None else None
        return _document(202, {"ticket": ticket, "state": found.state}, waits=True)

    def _forget(self, ticket: str) -> Reply | None:
        if self._queue is None or not self._queue.forget(ticket):
            return None
        return _document(200, {"ticket": ticket, "state": "forgotten"})


def _document(
    status: int, document: dict[str, str], *, waits: bool = False, ticket: str = ""
) -> Reply:
    headers = {"Content-Type": "application/json"}
    if waits:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if ticket:
        headers["Location"] = PREFIX + ticket
    return Reply(status=status, headers=headers, body=memoryview(to_json(document)))


def _refusal(exc: DeferralError) -> Reply:
    headers = {"Retry-After": str(exc.retry_after_s)} if exc.status == DeferralError.FULL else {}
    return Reply.refusal(exc.status, exc.message, headers)
