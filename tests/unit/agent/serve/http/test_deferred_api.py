"""Requests that may wait, as clients see them: tickets, answers, refusals, and advice."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.serve.advice import HEADER, Advice
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.deferred.settings import DeferredSettings
from agent.serve.deferred.store import DeferredStore
from agent.serve.frames import Reply
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from tests.simulators.patience import PATIENCE_S
from tests.unit.agent.serve.http.echo import INFER, Echo, port_of

TOKEN = {"Authorization": "Bearer secret"}


class Rig:
    """An endpoint whose deferrable requests run when a test says so."""

    def __init__(self, directory: Path, *, token: str | None = None) -> None:
        self.directory = directory
        heard, clock = Heard([], []), FakeClock()
        settings = DeferredSettings(requests=2, memory_bytes=4000, disk_bytes=4000)
        store = DeferredStore(directory, settings.disk_bytes, heard)
        self.queue = DeferredQueue(settings, store, heard, clock)
        self.router, self.advice = Echo(), Advice()
        self.endpoint = Endpoint(
            Alone(self.router), token=token, deferred=self.queue, advice=lambda: self.advice
        )
        self.endpoint.start()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any, dict[str, str]]:
        """Ask, and return the status, the document and the headers."""
        client = http.client.HTTPConnection("127.0.0.1", port_of(self.endpoint), timeout=PATIENCE_S)
        client.request(method, path, body=body, headers=headers or {})
        response = client.getresponse()
        content = response.read()
        client.close()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, json.loads(content) if content else None, headers

    def defer(self, **parameters: Any) -> tuple[int, Any, dict[str, str]]:
        body = json.dumps({"inputs": [], "parameters": {"deferrable": True, **parameters}})
        return self.ask("POST", INFER, body.encode(), TOKEN)

    def run(self, status: int = 200) -> None:
        begun = self.queue.begin()
        assert begun is not None
        ticket, call = begun
        headers = {"Content-Type": "application/json"}
        self.queue.finish(ticket, Reply(status=status, headers=headers, body=call.body))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.endpoint.stop()


@pytest.mark.parametrize("durable", [False, True])
def test_a_deferrable_request_gets_a_ticket_and_later_the_answer(rig: Rig, durable: bool) -> None:
    status, document, headers = rig.defer(durable=durable)
    path = headers["location"]
    assert (status, document["state"]) == (202, "waiting")
    assert path == f"/v2/deferred/{document['ticket']}"
    assert bool(list(rig.directory.iterdir())) is durable
    assert rig.router.calls == [], "nothing was asked yet"
    status, document, headers = rig.ask("GET", path)
    assert (status, document["state"], headers["retry-after"]) == (202, "waiting", "5")
    rig.run()
    status, document, headers = rig.ask("GET", path)
    assert (status, document["parameters"]["deferrable"]) == (200, True)
    assert headers["content-type"] == "application/json"
    assert rig.ask("HEAD", path)[:2] == (200, None)
    assert rig.ask("DELETE", path)[:2] == (
        200,
        {"ticket": path.rpartition("/")[2], "state": "forgotten"},
    )
    assert rig.ask("GET", path)[0] == rig.ask("DELETE", path)[0] == 404


def test_a_request_that_may_not_wait_is_answered_as_ever(rig: Rig) -> None:
    body = json.dumps({"inputs": [], "parameters": {"deferrable": False}}).encode()
    assert rig.ask("POST", INFER, body)[0] == 200
    assert rig.ask("POST", INFER, b'{"inputs": []}')[0] == 200
    assert [call.deferrable for call in rig.router.calls] == [False, False]


@pytest.mark.parametrize(
    "parameters", [{"deferrable": "yes"}, {"durable": True, "deferrable": False}, {"durable": 1}]
)
def test_a_wish_that_is_none_is_refused(rig: Rig, parameters: dict[str, Any]) -> None:
    status, document, _ = rig.defer(**parameters)
    assert status == 400
    assert "deferrable" in document["error"] or "JSON" in document["error"]


def test_a_full_queue_says_when_to_come_again(rig: Rig) -> None:
    assert [rig.defer()[0] for _ in range(2)] == [202, 202]
    status, document, headers = rig.defer()
    assert (status, headers["retry-after"]) == (503, "5")
    assert "too many deferrable requests" in document["error"]


def test_what_is_too_long_is_refused(rig: Rig) -> None:
    status, document, headers = rig.defer(padding="x" * 3000)
    assert status == 413
    assert "2000 bytes" in document["error"]
    assert "retry-after" not in headers


@pytest.mark.parametrize(
    "path",
    ["/v2/deferred/", "/v2/deferred/x", "/v2/deferred/../x", "/v2/deferred/" + "0" * 32,
     "/v2/deferred/" + "0" * 33, "/v2/deferred/" + "A" * 32],
)  # fmt: skip
def test_what_is_no_ticket_is_unknown(rig: Rig, path: str) -> None:
    assert rig.ask("GET", path)[:2] == (404, {"error": "there is no such ticket"})


def test_a_ticket_takes_no_other_method(rig: Rig) -> None:
    path = rig.defer()[2]["location"]
    status, _, headers = rig.ask("POST", path, b"")
    assert (status, headers["allow"]) == (405, "GET, HEAD, DELETE")


def test_who_has_no_token_gets_neither_tickets_nor_answers_nor_advice(tmp_path: Path) -> None:
    rig = Rig(tmp_path, token="secret")
    path = rig.defer()[2]["location"]
    body = b'{"parameters": {"deferrable": true}}'
    for method, target, sent in (
        ("POST", INFER, body),
        ("GET", path, None),
        ("DELETE", path, None),
        ("GET", "/v2/health/advice", None),
    ):
        assert rig.ask(method, target, sent)[0] == 401
    assert rig.ask("GET", path, headers=TOKEN)[0] == 202
    rig.endpoint.stop()


def test_an_endpoint_without_a_queue_says_so() -> None:
    endpoint = Endpoint(Alone(Echo()))
    endpoint.start()
    client = http.client.HTTPConnection("127.0.0.1", port_of(endpoint), timeout=PATIENCE_S)
    client.request("POST", INFER, b'{"parameters": {"deferrable": true}}')
    assert client.getresponse().status == 501
    client.close()
    endpoint.stop()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_advice_is_only_read(rig: Rig, method: str) -> None:
    status, _, headers = rig.ask(method, "/v2/health/advice", b"{}")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_an_application_can_ask_for_advice(rig: Rig) -> None:
    status, document, _ = rig.ask("GET", "/v2/health/advice")
    assert status == 200
    assert document == {"sampling_ratio": 1.0, "defer": False, "reasons": [], "valid_s": 5.0}
    rig.advice = Advice(sampling_ratio=0.559, defer=True, reasons=("heat: headroom 0.93",))
    _, document, _ = rig.ask("GET", "/v2/health/advice")
    assert document == {
        "sampling_ratio": 0.55,
        "defer": True,
        "reasons": ["heat: headroom 0.93"],
        "valid_s": 5.0,
    }
    assert rig.ask("POST", "/v2/health/advice", b"")[0] == 405


def test_answers_tell_of_advice_only_while_there_is_some(rig: Rig) -> None:
    name = HEADER.lower()
    assert name not in rig.ask("POST", INFER, b"{}")[2]
    rig.advice = Advice(defer=True)
    assert name not in rig.ask("POST", INFER, b"{}")[2]
    rig.advice = msgspec.structs.replace(rig.advice, sampling_ratio=0.6)
    assert rig.ask("POST", INFER, b"{}")[2][name] == "sampling=0.60"
    assert name not in rig.ask("GET", "/v2/health/live")[2]
