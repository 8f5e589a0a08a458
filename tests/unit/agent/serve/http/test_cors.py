"""Pages of other origins: what a browser is told, and what it may send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from agent.serve.http.connections import EndpointLimits
from agent.serve.http.cors import CrossOriginApi, Origins
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from tests.unit.agent.serve.http.echo import INFER, Echo, post, send, status_of

PANEL: Final = "https://panel.example"
SECRET: Final = "s3cret"
ALLOWED: Final = "Access-Control-Allow-Origin"
Start = Callable[..., Endpoint]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts endpoints with allowed origins."""
    endpoints: list[Endpoint] = []

    def begin(*allowed: str, token: str | None = None) -> Endpoint:
        origins = Origins(allowed)
        endpoint = Endpoint(
            Alone(Echo()),
            token=token,
            limits=EndpointLimits(body_bytes=1000),
            around=lambda api: CrossOriginApi(api, origins),
            shared=origins.headers,
        )
        endpoint.start()
        endpoints.append(endpoint)
        return endpoint

    yield begin
    for endpoint in endpoints:
        endpoint.stop()


def question(*headers: str, method: str = "OPTIONS", path: str = INFER) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,inference-header-content-length",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def headers_of(answer: bytes) -> dict[str, str]:
    head = answer.partition(b"\r\n\r\n")[0].decode()
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def test_a_browser_may_ask_before_it_has_the_token(start: Start) -> None:
    answer = send(start(PANEL, token=SECRET), question(f"Origin: {PANEL}"))
    headers = headers_of(answer)
    assert (status_of(answer), headers["Content-Length"]) == (200, "0")
    assert headers[ALLOWED] == PANEL
    assert headers["Vary"] == "Origin"
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert "Inference-Header-Content-Length" in headers["Access-Control-Allow-Headers"]
    assert "Authorization" in headers["Access-Control-Allow-Headers"]


def test_another_origin_is_told_no(start: Start) -> None:
    answer = send(start(PANEL), question("Origin: https://panel.example.evil"))
    assert status_of(answer) == 403
    assert ALLOWED not in headers_of(answer)
    assert headers_of(answer)["Vary"] == "Origin"


def test_a_page_reads_answers_and_their_headers(start: Start) -> None:
    headers = headers_of(send(start(PANEL), post(b"{}", f"Origin: {PANEL}")))
    assert headers[ALLOWED] == PANEL
    exposed = headers["Access-Control-Expose-Headers"]
    assert {"Inference-Header-Content-Length", "Edgefleet-Advice"} <= set(exposed.split(", "))
    assert headers["Vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://other.example", "null", f"{PANEL}:444", PANEL.upper()])
def test_a_page_of_another_origin_reads_nothing(start: Start, origin: str) -> None:
    headers = headers_of(send(start(PANEL), post(b"{}", f"Origin: {origin}")))
    assert ALLOWED not in headers
    assert headers["Vary"] == "Origin"


def test_a_page_reads_what_is_wrong_with_its_request(start: Start) -> None:
    endpoint = start(PANEL, token=SECRET)
    bearer = f"Authorization: Bearer {SECRET}"
    for request, status in (
        (post(b"", f"Origin: {PANEL}"), 401),
        (post(b"{}", f"Origin: {PANEL}"), 401),
        (post(b"{}", f"Origin: {PANEL}", bearer, "Content-Encoding: br"), 415),
        (f"GET /none HTTP/1.1\r\nHost: x\r\nOrigin: {PANEL}\r\n{bearer}\r\n\r\n".encode(), 404),
    ):
        answer = send(endpoint, request)
        assert status_of(answer) == status
        assert headers_of(answer)[ALLOWED] == PANEL


def test_a_request_that_looks_like_a_question_needs_the_token(start: Start) -> None:
    endpoint = start(PANEL, token=SECRET)
    length = "Content-Length: 0"
    for request in (
        question(f"Origin: {PANEL}", method="DELETE", path="/v2/deferred/" + "0" * 32),
        question(f"Origin: {PANEL}", length, method="POST"),
        question(f"Origin: {PANEL}", method="GET", path="/v2"),
        post(b"{}", f"Origin: {PANEL}", "Access-Control-Request-Method: POST"),
        question(),  # no browser sends it without an origin
    ):
        assert status_of(send(endpoint, request)) == 401


def test_all_origins_are_told_so_and_no_credentials(start: Start) -> None:
    endpoint = start("*")
    for request in (question(f"Origin: {PANEL}"), post(b"{}", "Origin: null"), post(b"{}")):
        headers = headers_of(send(endpoint, request))
        assert headers[ALLOWED] == "*"
        assert "Vary" not in headers
        assert "Access-Control-Allow-Credentials" not in headers


def test_requests_on_one_connection_have_their_own_origins(start: Start) -> None:
    get = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
    answers = send(
        start(PANEL), f"{get}Origin: {PANEL}\r\n\r\n{get}\r\n{get}Bad Header: x\r\n\r\n".encode()
    ).split(b"HTTP/1.1 ")
    assert [ALLOWED.encode() in answer for answer in answers[1:]] == [True, False, False]


def test_without_origins_nothing_changes() -> None:
    endpoint = Endpoint(Alone(Echo()))
    endpoint.start()
    answers = [
        send(endpoint, question(f"Origin: {PANEL}")),
        send(endpoint, post(b"{}", f"Origin: {PANEL}")),
    ]
    endpoint.stop()
    assert [status_of(answer) for answer in answers] == [405, 200]
    for answer in answers:
        assert not any(name.startswith(("Access-", "Vary")) for name in headers_of(answer))
