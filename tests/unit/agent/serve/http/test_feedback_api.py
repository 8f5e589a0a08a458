"""The path of feedback at an endpoint: what is taken, and what is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from agent.serve.feedback.intake import Feedback
from agent.serve.feedback.kept import KeptAnswers
from agent.serve.feedback.settings import FeedbackSettings
from agent.serve.frames import Given
from agent.serve.http.connections import SMALL_BYTES
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.feedback_api import MAX_BODY_BYTES, FeedbackApi
from agent.serve.served import Alone
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock
from tests.unit.agent.serve.http.echo import Echo, send, status_of
from tests.unit.agent.serve.test_answered import Heard
from tests.unit.wire.package.test_scores import info, output
from wire.health import HealthSnapshot

SECRET: Final = "s3cret"
PATH: Final = "/v2/models/digits/feedback"
JSON: Final = "Content-Type: application/json; charset=utf-8"
TOKEN: Final = f"Authorization: Bearer {SECRET}"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """An endpoint that has answered the requests `q` and `r`, both with class 2."""
    clock, heard = FakeClock(), Heard()
    kept = KeptAnswers(tmp_path, heard, clock)
    health = HealthSnapshot(at_s=0.0)
    feedback = Feedback(FeedbackSettings(enabled=True), kept, lambda: health, heard, clock)
    for name in ("q", "r"):
        given = Given(id=name, classes=(2,))
        feedback.remember(
            msgspec.structs.replace(answered(), given=given, info=info(output(-1, 3)))
        )
    endpoint = Endpoint(Alone(Echo()), token=SECRET, around=lambda api: FeedbackApi(api, feedback))
    endpoint.start()
    yield endpoint
    endpoint.stop()


def say(
    endpoint: Endpoint, body: bytes, *headers: str, path: str = PATH, method: str = "POST"
) -> tuple[int, Any]:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    answer = send(endpoint, "\r\n".join([*lines, "", ""]).encode() + body)
    return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])


def test_what_is_said_first_counts(endpoint: Endpoint) -> None:
    right, wrong = b'{"id": "q", "label": 2}', b'{"id": "q", "label": 0}'
    assert say(endpoint, right, JSON, TOKEN) == (
        200, {"id": "q", "counted": True, "samples": 1, "right": 1},
    )  # fmt: skip
    status, document = say(endpoint, right, JSON, TOKEN, path=f"{PATH}?late=1")
    assert (status, document["counted"]) == (200, False)
    contradiction = "another truth was told of this answer before, and that one counts"
    assert say(endpoint, wrong, JSON, TOKEN) == (409, {"error": contradiction})
    path = "/v2/models/digits/versions/1/feedback"
    assert say(endpoint, b'{"id": "r", "score": 0.5}', JSON, TOKEN, path=path) == (
        200, {"id": "r", "counted": True},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b'{"id": "q", "label": 2}', (JSON,), 401, "a bearer token is needed"),
        (b'{"id": "q", "label": 2}', (TOKEN,), 415, "send the header Content-Type"),
        (b'{"id": "q", "label": 2}', (TOKEN, "Content-Type: text/plain"), 415, "feedback is JSON"),
        (b"", (TOKEN, JSON), 400, "not a valid FeedbackRequest"),
        (b"[1]", (TOKEN, JSON), 400, "Expected `object`, got `array`"),
        (b'{"label": 2}', (TOKEN, JSON), 400, "missing required field `id`"),
        (b'{"id": "", "label": 2}', (TOKEN, JSON), 400, "`$.id`"),
        (b'{"id": "q", "lable": 2}', (TOKEN, JSON), 400, "unknown field `lable`"),
        (b'{"id": "q", "label": true}', (TOKEN, JSON), 400, "got `bool`"),
        (b'{"id": "q", "score": NaN}', (TOKEN, JSON), 400, "JSON is malformed"),
        (b'{"id": "q", "score": 1e999}', (TOKEN, JSON), 400, "out of range"),
        (b'{"id": "q", "label": 7}', (TOKEN, JSON), 400, "there is no class 7"),
        (b'{"id": "s", "label": 2}', (TOKEN, JSON), 404, "no answer of 'digits' with this id"),
        (b" " * (MAX_BODY_BYTES + 1), (TOKEN, JSON), 413, f"at most {MAX_BODY_BYTES} bytes"),
        (b" " * (SMALL_BYTES + 1), (TOKEN, JSON), 413, f"over {SMALL_BYTES} bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    endpoint: Endpoint, body: bytes, headers: tuple[str, ...], status: int, text: str
) -> None:
    found, document = say(endpoint, body, *headers)
    assert (found, set(document)) == (status, {"error"})
    assert text in document["error"]
    assert "\n" not in document["error"]


def test_only_post_is_feedback_and_other_paths_are_as_they_were(endpoint: Endpoint) -> None:
    assert say(endpoint, b"", TOKEN, method="PUT")[0] == 405
    assert say(endpoint, b"{}", TOKEN, path="/v2/models/digits/infer") == (200, {})
    assert say(endpoint, b"{}", TOKEN, path="/v2/repository/feedback")[0] == 404


def test_an_endpoint_without_feedback_says_what_switches_it_on() -> None:
    endpoint = Endpoint(Alone(Echo()))
    endpoint.start()
    status, document = say(endpoint, b"{}", JSON)
    endpoint.stop()
    assert (status, "`enabled = true` below [feedback]" in document["error"]) == (501, True)
