"""Each lever in force on what an agent serves with: real workers, its endpoint, given readings."""

from __future__ import annotations

import http.client
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest

from agent.app.config import AgentConfig, EndpointConfig
from agent.app.endpoint import make_endpoint
from agent.app.serving import make_deferral, make_serving
from agent.install.slots import Slots
from agent.log import Log
from agent.packages import Damage, open_package
from agent.select.adaptations import Adaptations
from agent.select.levers import Levers
from agent.serve.answered import Answered, Outcome
from agent.serve.served import ServedModels
from agent.serve.settings import Mode
from telemetry.device.recorder import Recorder
from tests.simulators.packages import PROFILE, TRUST, package, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.rig import INPUT as ROW
from tests.simulators.rig import body_of
from wire.clock import SystemClock
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec
from wire.telemetry import SumPoint

CLOCK = SystemClock()
MIB = 2**20
INFER = "/v2/models/digits/infer"
INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}
CALM: dict[str, Any] = {
    "headroom": 0.2,
    "throttled": False,
    "battery_ratio": 0.9,
    "battery_discharging": False,
    "cpu_stall_ratio": 0.0,
    "cpu_busy_ratio": 0.1,
    "memory_available_bytes": 2000 * MIB,
}
RULES = PolicySpec(kind="rules", dwell_s=0.0)


class Answer(NamedTuple):
    status: int
    document: Any
    headers: dict[str, str]
    took_s: float

    @property
    def variant(self) -> str:
        return str(self.document["parameters"]["variant"])


class Served:
    """The serving half of an agent, assembled as the agent does it; the test is its sensors."""

    def __init__(self, directory: Path, policy: PolicySpec, *, delay_ms: int = 5) -> None:
        config = AgentConfig(
            device="dev-1",
            state_dir=directory / "state",
            profile=directory / "none",
            trust=directory / "none",
            endpoint=EndpointConfig(port=0),
            policy=policy,
        )
        config.state_dir.mkdir()
        self.recorder, slots = Recorder(CLOCK), Slots(config.state_dir)
        self.server, self.adaptation = make_serving(
            config,
            PROFILE,
            TRUST,
            slots,
            damage=Damage(self.recorder),
            recorder=self.recorder,
            clock=CLOCK,
        )
        self.models, self.adaptations = ServedModels(CLOCK), Adaptations(CLOCK)
        self.models.add("digits", self.server.router)
        self.adaptations.add("digits", self.adaptation)
        self.deferral = make_deferral(
            config, self.models, self.adaptations, recorder=self.recorder, clock=CLOCK
        )
        self.deferral.queue.load()
        self.endpoint = make_endpoint(
            config,
            self.models,
            Log(CLOCK, io.StringIO()),
            deferred=self.deferral.queue,
            adaptations=self.adaptations,
        )
        self.endpoint.start()
        self.deferral.start()
        options = {"delay_ms": str(delay_ms)}
        best = variant(
            "best", accuracy=0.99, latency_ms=delay_ms + 2.0, memory_bytes=40 * MIB,
            options=options,
        )  # fmt: skip
        small = variant(
            "small", accuracy=0.90, latency_ms=delay_ms, memory_bytes=20 * MIB, options=options
        )
        made = package("1.0", [(best, b'{"seed": 1}'), (small, b'{"seed": 2}')])
        place = slots.directory(made.digest)
        made.write_to(place)
        self.sense()
        self.adaptation.serve(open_package(place, made.digest, TRUST), {}, {}, why="test")

    def sense(self, **readings: Any) -> Levers:
        """Let the agent read its sensors and decide."""
        self.adaptation.tick(HealthSnapshot(at_s=CLOCK.now_s(), **(CALM | readings)))
        decision = self.adaptation.decision
        return decision.levers if decision is not None else Levers()

    def ask(self, method: str, path: str, document: object = None) -> Answer:
        host, _, port = self.endpoint.address.rpartition(":")
        client = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        began_s = CLOCK.monotonic_s()
        client.request(method, path, None if document is None else json.dumps(document))
        response = client.getresponse()
        content = json.loads(response.read())
        client.close()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, content, headers, CLOCK.monotonic_s() - began_s)

    def infer(self, value: float = 1.0, **parameters: Any) -> Answer:
        tensor = INPUT | {"data": [value, 2.0, 3.0, 4.0]}
        return self.ask("POST", INFER, {"inputs": [tensor], "parameters": parameters})

    def together(self, count: int) -> list[Answer]:
        answers = list[Answer]()
        threads = [
            threading.Thread(target=lambda n=n: answers.append(self.infer(value=float(n))))
            for n in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            finished(thread)
        return answers

    def defer(self) -> str:
        accepted = self.infer(deferrable=True)
        assert accepted.status == 202
        return accepted.headers["location"]

    def answered(self, ticket: str) -> Answer | None:
        answer = self.ask("GET", ticket)
        return answer if answer.status != 202 else None

    def joined(self) -> float:
        """Return how many requests were joined since the last look."""
        points, _ = self.recorder.drain()
        return sum(
            p.value
            for p in points
            if isinstance(p, SumPoint) and p.metric == "inference_joined_total"
        )

    def stop(self) -> None:
        self.deferral.stop()
        self.endpoint.stop()
        self.server.stop()
        self.deferral.join()


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, **getattr(request, "param", {"policy": RULES}))
    yield served
    served.stop()


def joins(served: Served) -> bool:
    served.together(8)
    return served.joined() > 0


def test_heat_precision_batch_and_what_may_wait(served: Served) -> None:
    assert served.infer().variant == "best"
    until(lambda: joins(served), "joined requests")

    levers = served.sense(headroom=0.95)
    assert levers.causes == ("heat",)
    hot = served.infer()
    assert hot.variant == "small", "a precision that is cheaper"
    assert hot.headers["edgefleet-advice"] == f"sampling={levers.sampling_ratio - 1e-9:.2f}"
    served.joined()
    assert {answer.status for answer in served.together(24)} == {200}
    assert served.joined() == 0, "no batches"
    ticket = served.defer()
    for _ in range(3):
        assert served.infer().status == 200
    assert served.answered(ticket) is None, "what may wait does"
    advice = served.ask("GET", "/v2/health/advice").document
    assert advice["defer"]
    assert advice["reasons"] == ["heat: headroom 0.95"]
    served.sense(headroom=None, throttled=None)
    assert served.answered(ticket) is None, "unknown is not cool"

    assert served.sense().causes == ()
    assert until(lambda: served.answered(ticket), "the answer").variant == "best"
    assert served.infer().variant == "best"
    until(lambda: joins(served), "joined requests again")


def test_a_slow_clock_is_heat_and_its_share_is_what_applications_may_send(served: Served) -> None:
    levers = served.sense(throttled=True, cpu_frequency_limit_ratio=0.5)
    assert not levers.joins
    assert served.infer().headers["edgefleet-advice"] == "sampling=0.50"
    assert served.ask("GET", "/v2/health/advice").document["reasons"] == [
        "heat: the processor is slowed down"
    ]


def test_battery_efficient_model_and_what_may_wait(served: Served) -> None:
    assert served.infer().variant == "best"
    served.sense(battery_ratio=0.1, battery_discharging=True)
    low = served.infer()
    assert (low.variant, low.headers["edgefleet-advice"]) == ("small", "sampling=0.50")
    ticket = served.defer()
    served.infer()
    assert served.answered(ticket) is None
    served.sense(battery_ratio=0.1, battery_discharging=False)
    assert until(lambda: served.answered(ticket), "the answer").status == 200


def test_other_programs_only_make_wait_what_may(served: Served) -> None:
    levers = served.sense(cpu_stall_ratio=0.7)
    assert levers.causes == ("contention",)
    ticket = served.defer()
    answer = served.infer()
    assert answer.variant == "best"
    assert "edgefleet-advice" not in answer.headers
    assert served.answered(ticket) is None
    served.sense()
    assert until(lambda: served.answered(ticket), "the answer").variant == "best"


def test_raw_tensors_may_wait_too(served: Served) -> None:
    raw, headers = body_of()
    length = int(headers["Inference-Header-Content-Length"])
    head = json.loads(raw[:length])
    head["parameters"]["deferrable"] = True
    content = json.dumps(head).encode()
    host, _, port = served.endpoint.address.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    headers = {"Inference-Header-Content-Length": str(len(content))}
    client.request("POST", INFER, content + raw[length:], headers)
    accepted = client.getresponse()
    accepted.read()
    ticket = accepted.headers["Location"]

    def answer() -> tuple[str, bytes] | None:
        client.request("GET", ticket)
        response = client.getresponse()
        content = response.read()
        told = response.headers.get("Inference-Header-Content-Length")
        return (told, content) if told is not None else None

    told, found = until(answer, "the answer")
    client.close()
    now = served.ask("POST", INFER, {"inputs": [INPUT | {"data": ROW.ravel().tolist()}]}).document
    (output,) = now["outputs"]
    assert np.frombuffer(found[int(told) :], "<f4").tolist() == output["data"]


STREAMING = PolicySpec(kind="adaptive", dwell_s=0.0, objective=Objective(deadline_ms=1000.0))


@pytest.mark.parametrize("served", [{"policy": STREAMING, "delay_ms": 20}], indirect=True)
def test_memory_smaller_model_and_one_sample_at_a_time(served: Served) -> None:
    def took_s() -> float:
        rows = {"shape": [10, 4], "data": [1.0] * 40}
        answer = served.ask("POST", INFER, {"inputs": [INPUT | rows]})
        assert answer.status == 200
        return answer.took_s

    until(lambda: took_s() < 10 * 0.02, "all samples at once")
    served.sense(memory_available_bytes=1 * MIB)
    assert served.infer().variant == "small"
    served.sense(memory_available_bytes=1 * MIB)
    assert served.server.router.mode.stream
    assert took_s() >= 10 * 0.02, "one at a time"
    served.sense()
    assert not served.server.router.mode.stream


LOADED = PolicySpec(kind="adaptive", dwell_s=0.0, objective=Objective(deadline_ms=150.0))


class Clients:
    """Clients that ask again when they have an answer, or a little after a refusal."""

    def __init__(self, served: Served, count: int) -> None:
        self.refused: list[Answer] = []
        self._served = served
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        for thread in self._threads:
            finished(thread)

    def _run(self) -> None:
        while not self._end.is_set():
            answer = self._served.infer()
            if answer.status != 200:
                self.refused.append(answer)
                self._end.wait(0.2)


@pytest.mark.parametrize("served", [{"policy": LOADED, "delay_ms": 40}], indirect=True)
def test_load_queue_what_may_wait_and_shed_what_would_be_late(served: Served) -> None:
    records = list[Answered]()
    served.server.router.mode = Mode(max_batch=1)
    served.server.router.listen(records.append)
    ticket = served.defer()
    assert until(lambda: served.answered(ticket), "the answer").status == 200

    def waits_s() -> list[float]:
        """Return how long each of the next requests waits that is answered."""
        records.clear()
        until(lambda: sum(r.outcome is Outcome.OK for r in records) >= 10, "answers")
        return [record.queue_s for record in records if record.outcome is Outcome.OK]

    # 24 at a time, each of 40 ms: a queue in which everybody waits for about a second.
    with Clients(served, 24) as clients:
        until(lambda: min(waits_s()) > 0.15, "a queue in which everybody waits for too long")
        levers = until(lambda: loaded(served), "load")
        assert levers.longest_wait_s is not None
        assert levers.longest_wait_s < 0.15
        until(lambda: max(waits_s()) < 0.15, "answers that are all in time")
        assert loaded(served)
        assert {answer.status for answer in clients.refused} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in clients.refused)
        ticket = served.defer()
        waits_s()
        assert served.answered(ticket) is None, "what may wait does"
        advice = served.ask("GET", "/v2/health/advice").document
        assert advice["sampling_ratio"] < 1.0
        assert advice["reasons"][0].startswith("load: ")

    until(lambda: not loaded(served), "the end of the load")
    assert until(lambda: served.answered(ticket), "the answer").status == 200


def loaded(served: Served) -> Levers | None:
    CLOCK.sleep(0.1)  # a period in which requests can be counted
    levers = served.sense()
    return levers if "load" in levers.causes else None
