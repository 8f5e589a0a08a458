"""Requests that come together: joined, ordered, put off, each with its own answer."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.serve.settings import Mode, ServingSettings, WorkerLimits
from runtime_adapters.protocol import Limits, Tensor
from runtime_adapters.registry import open_session
from tests.simulators.frozen import active_of, frozen, until_busy
from tests.simulators.packages import variant
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.rig import CLOCK, Rig
from wire.telemetry import SumPoint

PATH = "/v2/models/digits/infer"
ROOM_BYTES = 12 * 1024**2


@dataclass
class Answer:
    status: int
    document: dict[str, Any]
    headers: dict[str, str]
    values: Any
    came_s: float


@dataclass
class Client:
    """Asks in a thread of its own, each time on a new connection."""

    rig: Rig
    answers: list[Answer] = field(default_factory=list)

    def ask(self, body: bytes, headers: dict[str, str]) -> Answer:
        connection = self.rig.client()
        connection.request("POST", PATH, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        answer = _parsed(response, content)
        self.answers.append(answer)
        return answer

    def begin(self, body: bytes, headers: dict[str, str]) -> threading.Thread:
        thread = threading.Thread(target=self.ask, args=(body, headers), daemon=True)
        thread.start()
        return thread


def _parsed(response: http.client.HTTPResponse, content: bytes) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    length = int(headers.get("inference-header-content-length", len(content)))
    document = json.loads(content[:length])
    values = None
    if response.status == 200:
        (output,) = document["outputs"]
        flat = np.frombuffer(content[length:], "<f4") if "data" not in output else output["data"]
        values = np.array(flat, np.float32).reshape(output["shape"])
    return Answer(response.status, document, headers, values, CLOCK.monotonic_s())


def body(values: Tensor, *, raw: bool = True, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(values.shape)}
    if not raw:
        tensor["data"] = values.ravel().tolist()
        return json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), {}
    tensor["parameters"] = {"binary_data_size": values.nbytes}
    document = {"inputs": [tensor], "parameters": parameters | {"binary_data_output": True}}
    head = json.dumps(document).encode()
    return head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def rows(number: int, count: int = 1) -> Tensor:
    return np.random.default_rng(number).random((count, 4)).astype(np.float32)


def expected(rig: Rig, values: Tensor) -> Tensor:
    chosen = variant("first")
    with_model = open_session(rig.directory / chosen.directory, chosen.info, Limits())
    return with_model.infer({"x": values})["y"]


def sums(rig: Rig, metric: str) -> float:
    points, _ = rig.recorder.drain()
    return sum(p.value for p in points if isinstance(p, SumPoint) and p.metric == metric)


def together(rig: Rig, bodies: list[tuple[bytes, dict[str, str]]]) -> list[Answer]:
    """Send requests at the same time, each on a connection of its own."""
    clients = [Client(rig) for _ in bodies]
    threads = [client.begin(*sent) for client, sent in zip(clients, bodies, strict=True)]
    for thread in threads:
        finished(thread)
    return [client.answers[0] for client in clients]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, settings=ServingSettings(infer_timeout_s=PATIENCE_S))
    yield rig
    rig.stop()


def test_requests_of_all_kinds_that_come_together_get_their_own_answers(rig: Rig) -> None:
    rig.use(variant("first", options={"delay_ms": "10"}))
    wrong: list[object] = []

    def ask(number: int) -> None:
        client = Client(rig)
        for turn in range(12):
            values = rows(100 * number + turn, count=1 + (number + turn) % 3)
            answer = client.ask(*body(values, raw=turn % 3 != 0))
            answered = answer.values
            if answered is None or not np.array_equal(answered, expected(rig, values)):
                wrong.append((number, turn, answer))
            refused = client.ask(*(body(rows(1)[:, :3]) if turn % 2 else (b"{", {})))
            if refused.status != 400:
                wrong.append(refused)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    assert wrong == []
    assert sums(rig, "inference_joined_total") > 0


def test_nothing_is_joined_where_that_is_forbidden(rig: Rig) -> None:
    rig.server.router.mode = Mode(max_batch=1)
    rig.use(variant("first", options={"delay_ms": "10"}))
    threads = [Client(rig).begin(*body(rows(number))) for number in range(20)]
    for thread in threads:
        finished(thread)
    assert sums(rig, "inference_joined_total") == 0


def test_the_mode_can_be_changed_while_the_model_serves(rig: Rig) -> None:
    rig.use(variant("first", options={"delay_ms": "20"}))
    client, values = Client(rig), rows(1, count=20)
    one_by_one_s = 20 * 0.02

    def took_s() -> float:
        began_s = CLOCK.monotonic_s()
        assert np.array_equal(client.ask(*body(values)).values, expected(rig, values))
        return CLOCK.monotonic_s() - began_s

    until(lambda: took_s() < one_by_one_s, "an answer to all samples at once")
    rig.server.router.mode = Mode(stream=True)
    assert took_s() >= one_by_one_s
    assert rig.server.router.mode.stream


def test_a_model_that_takes_one_sample_at_once_answers_all_and_says_why_it_joins_none(
    rig: Rig,
) -> None:
    rig.use(variant("first", options={"delay_ms": "5", "most_rows": "1"}))
    told: list[str] = []

    def is_told() -> bool:
        answers = together(rig, [body(rows(number)) for number in range(4)])
        assert [answer.status for answer in answers] == [200] * 4
        points, events = rig.recorder.drain()
        assert not [p for p in points if p.metric == "inference_joined_total"]
        told.extend(event.reason for event in events if event.kind == "worker")
        return bool(told)

    until(is_told, "requests that wait for the same turn")
    assert all(
        t.startswith("requests for this model cannot be joined: the null model cannot take")
        for t in told
    )


def test_requests_that_are_too_large_to_join_share_the_memory_that_there_is(tmp_path: Path) -> None:
    idle = Rig(tmp_path / "idle")
    idle.use(variant("first", options={"delay_ms": "5"}))
    (own_kib,) = re.findall(r"VmData:\s+(\d+) kB", Path(f"/proc/{idle.pid}/status").read_text())
    idle.stop()
    # What a worker takes by itself depends on the machine; what it gets for requests is the same.
    limits = WorkerLimits(memory_bytes=int(own_kib) * 1024 + ROOM_BYTES)
    rig = Rig(tmp_path, settings=ServingSettings(limits=limits, infer_timeout_s=PATIENCE_S))
    rig.use(variant("first", options={"delay_ms": "5"}))
    answers = []
    for turn in range(4):
        bodies = [body(rows(10 * turn + number, count=100_000)) for number in range(4)]
        answers += together(rig, bodies)
    assert [answer.status for answer in answers] == [200] * 16
    rig.stop()


def test_the_urgent_are_served_before_those_that_waited_longer(rig: Rig) -> None:
    rig.server.router.mode = Mode(max_batch=1)
    rig.use(variant("first", options={"delay_ms": "300"}))
    active = active_of(rig)
    clients = {name: Client(rig) for name in ("busy", "low", "usual", "urgent")}
    priorities = {"busy": 0, "low": 7, "usual": 0, "urgent": 1}
    threads = []
    with frozen(active.worker):
        for number, (name, client) in enumerate(clients.items()):
            threads.append(client.begin(*body(rows(1), priority=priorities[name])))
            until_busy(active.worker, active.scheduler, waiting=number)
    for thread in threads:
        finished(thread)
    came_s = {name: client.answers[0].came_s for name, client in clients.items()}
    assert sorted(came_s, key=lambda name: came_s[name]) == ["busy", "urgent", "usual", "low"]


def test_the_least_urgent_are_put_off_first(tmp_path: Path) -> None:
    limits = WorkerLimits(waiting=1)
    rig = Rig(
        tmp_path,
        settings=ServingSettings(limits=limits, mode=Mode(max_batch=1), infer_timeout_s=PATIENCE_S),
    )
    rig.use(variant("first"))
    active = active_of(rig)
    busy, low, usual = Client(rig), Client(rig), Client(rig)
    with frozen(active.worker):
        threads = [busy.begin(*body(rows(1)))]
        until_busy(active.worker, active.scheduler)
        threads.append(low.begin(*body(rows(2), priority=5)))
        until_busy(active.worker, active.scheduler, waiting=1)
        threads.append(usual.begin(*body(rows(3))))
        until(lambda: low.answers, "a refusal")
    for thread in threads:
        finished(thread)
    assert [client.answers[0].status for client in (busy, low, usual)] == [200, 503, 200]
    assert int(low.answers[0].headers["retry-after"]) >= 1
    assert "urgent" in low.answers[0].document["error"]
    rig.stop()


def test_what_would_come_too_late_is_not_computed(rig: Rig) -> None:
    rig.server.router.mode = Mode(max_batch=1)
    rig.use(variant("first", options={"delay_ms": "300"}))
    client, active = Client(rig), active_of(rig)
    assert client.ask(*body(rows(1), timeout=10_000_000)).status == 200  # it need not wait
    assert sums(rig, "worker_compute_seconds_total") > 0
    threads = []
    with frozen(active.worker):
        for number in range(2):
            threads.append(Client(rig).begin(*body(rows(number))))
            until_busy(active.worker, active.scheduler, waiting=number)
        # One waits, who takes 0.3 s: even half of that is too long. Refused at once.
        refused = client.ask(*body(rows(1), timeout=100_000))
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        # It might be in time, and so it waits for as long as it has.
        content, headers = body(rows(1))
        began_s = CLOCK.monotonic_s()
        late = client.ask(content, headers | {"Inference-Timeout-Ms": "1500"})
        assert late.status == 504
        assert CLOCK.monotonic_s() - began_s >= 1.5
    for thread in threads:
        finished(thread)
    assert sums(rig, "inference_requests_total") == 4


def test_a_wish_that_is_none_is_a_bad_request(rig: Rig) -> None:
    rig.use(variant("first"))
    content, headers = body(rows(1))
    client = Client(rig)
    assert client.ask(*body(rows(1), priority=-1)).status == 400
    assert client.ask(*body(rows(1), timeout="soon")).status == 400
    assert client.ask(content, headers | {"Inference-Timeout-Ms": "soon"}).status == 400
    assert client.ask(content, headers).status == 200


def test_triton_s_client_can_wish(rig: Rig) -> None:
    from tritonclient import http as triton
    from tritonclient.utils import InferenceServerException

    rig.server.router.mode = Mode(max_batch=1)
    rig.use(variant("first", options={"delay_ms": "300"}))
    active = active_of(rig)
    client = triton.InferenceServerClient(rig.endpoint.address, concurrency=4)
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(rows(1))
    assert client.infer("digits", [tensor], priority=1, timeout=5_000_000).as_numpy("y").size == 4
    with frozen(active.worker):
        threads = [Client(rig).begin(*body(rows(1))) for _ in range(2)]
        until_busy(active.worker, active.scheduler, waiting=1)
        with pytest.raises(InferenceServerException):
            client.infer("digits", [tensor], priority=9, timeout=10_000)
    for thread in threads:
        finished(thread)
    later = client.async_infer("digits", [tensor], priority=3)
    assert later.get_result().as_numpy("y").size == 4
    client.close()
