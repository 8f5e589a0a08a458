"""The path of feedback: an application says whether an answer was right, or how good it was.

| request | answer |
|---|---|
| `POST /v2/models/NAME[/versions/VERSION]/feedback` | 200, and whether it counted |
| about an answer that is not known, or not any more | 404 |
| that contradicts what was said before | 409 |

It stands before the other paths and gives on what is not for it, so an endpoint that takes no
feedback is as it was.

Rules:
- Who may ask for inference may say what was right: the token, if there is one, is needed.
- The body is JSON, and says so: a page of another origin cannot send that without asking first.
- What is wrong is said in one line, and counts nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol

from agent.serve.errors import FeedbackError
from agent.serve.feedback.intake import Counted
from agent.serve.feedback.truths import FeedbackRequest
from agent.serve.frames import Reply
from agent.serve.http.request import RefusedRequestError
from agent.serve.http.server import FEEDBACK, Api
from wire.codec import from_json, to_json
from wire.errors import WireFormatError

JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 16 * 1024
_PATH: Final = re.compile(r"/v2/models/([^/]{1,200})(?:/versions/([^/]{1,200}))?/feedback")


class FeedbackPort(Protocol):
    """Counts what applications say."""

    def take(self, model: str, version: str | None, said: FeedbackRequest) -> Counted:
        """Count it; raises a FeedbackError if it cannot be taken."""
        ...


class FeedbackApi:
    """Answers the path of feedback, and leaves all else to another API.

    Args:
        api: Answers all else.
        feedback: Counts what applications say.
    """

    def __init__(self, api: Api, feedback: FeedbackPort) -> None:
        self._api = api
        self._feedback = feedback

    def refusal(self, target: str, headers: Mapping[str, str]) -> RefusedRequestError | None:
        """Refuse a client that may not ask for this; None if it may."""
        return self._api.refusal(target, headers)

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None = None,
    ) -> Reply:
        """Answer a request that `refusal` has not refused."""
        path = target.partition("?")[0]
        match = _PATH.fullmatch(path) if path.endswith(FEEDBACK) else None
        if match is None:
            return self._api.answer(method, target, headers, body, connection)
        refusal = _refusal(method, headers, body)
        if refusal is not None:
            return refusal
        try:
            said = from_json(bytes(body), FeedbackRequest)
            counted = self._feedback.take(match[1], match[2], said)
        except WireFormatError as exc:
            return Reply.refusal(400, exc.message)
        except FeedbackError as exc:
            return Reply.refusal(exc.status, str(exc))
        return _reply(said, counted)


def _refusal(method: str, headers: Mapping[str, str], body: memoryview) -> Reply | None:
    """Refuse what cannot be feedback, whatever it says."""
    if method != "POST":
        return Reply.refusal(405, "feedback requires POST", {"Allow": "POST"})
    if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        return Reply.refusal(415, f"feedback is JSON: send the header Content-Type: {JSON}")
    if len(body) > MAX_BODY_BYTES:
        return Reply.refusal(413, f"feedback is at most {MAX_BODY_BYTES} bytes")
    return None


def _reply(said: FeedbackRequest, counted: Counted) -> Reply:
    document: dict[str, Any] = {"id": said.id, "counted": counted.is_new}
    if counted.right is not None:
        document |= {"samples": counted.samples, "right": counted.right}
    return Reply(status=200, headers={"Content-Type": JSON}, body=memoryview(to_json(document)))
