"""Switches under a load that never pauses, and switches where there is no memory for both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from agent.serve.errors import NotServingError, WorkerLoadError
from agent.serve.settings import ServingSettings
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.crowd import Crowd
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.rig import DIGEST, INPUT, NAMES, SEEDS, Rig, body_of, infer
from wire.package.variant import Variant
from wire.telemetry import Event, HistogramPoint

SWITCHES = int(os.environ.get("EDGEFLEET_SWITCHES", "60"))
MEMORY = 1.05
"""Share of the memory before that may be in use after all switches."""

ROOT = Path(__file__).parents[2]

SUPERVISOR = """
import sys
from pathlib import Path
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from agent.serve.model_server import ModelServer
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.package.manifest import manifest_from_bytes

clock, package = SystemClock(), Path(sys.argv[1])
server = ModelServer(Recorder(clock), clock, device="dev-1")
manifest = manifest_from_bytes((package / "manifest.json").read_bytes())
variants = {v.name: v for v in manifest.variants}
endpoint = Endpoint(Alone(server.router))
endpoint.start()
print(endpoint.address.rpartition(":")[2], flush=True)
for line in sys.stdin:
    server.switch_to(package, "d" * 64, variants[line.strip()])
    print(server.active.worker.pid, flush=True)
endpoint.stop()
server.stop()
"""


def onnx_variant(name: str, seed: int) -> tuple[Variant, bytes]:
    """Return a variant of the same interface as the null ones, for ONNX Runtime."""
    weights = np.random.default_rng(seed).random((4, 4), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = helper.make_opsetid("", 17)
    content = helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    plain = variant(name)
    info = msgspec.structs.replace(plain.info, runtime="onnxruntime", model_file="model.onnx")
    return msgspec.structs.replace(plain, info=info), content


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # each starts a process, besides a load on all cores
def test_many_switches_lose_nothing_mix_nothing_and_leave_nothing(tmp_path: Path) -> None:
    # They take their time: requests are always under way when a worker is replaced, and the load
    # leaves some of the processor for starting workers.
    slow = [variant(name, options={"delay_ms": "50"}) for name in ("first", "second")]
    pairs = [*((chosen, SEEDS[chosen.name]) for chosen in slow), onnx_variant("third", 3)]
    package("1.0", pairs).write_to(tmp_path)
    expected = {
        chosen.name: open_session(tmp_path / chosen.directory, chosen.info, Limits()).infer(
            {"x": INPUT}
        )["y"]
        for chosen, _ in pairs
    }
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        port = int(supervisor.stdout.readline())

        def switch(name: str) -> int:
            print(name, file=supervisor.stdin, flush=True)
            return int(supervisor.stdout.readline()) if supervisor.stdout else 0

        pids = {switch("first")}
        sizes: list[int] = []
        with Crowd(port, expected) as clients:
            for turn in range(SWITCHES):
                name = NAMES[(turn + 1) % 2] if turn % 20 else "third"
                pid = switch(name)
                pids.add(pid)
                if turn % 20 == 11:
                    sizes.append(rss_bytes(supervisor.pid) + rss_bytes(pid))
        supervisor.stdin.close()
        assert supervisor.wait(PATIENCE_S) == 0
    assert clients.faults == []
    assert set(clients.answers) == set(NAMES)
    assert clients.answers.total() > SWITCHES
    assert len(pids) == SWITCHES + 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert sizes[-1] <= sizes[0] * MEMORY, sizes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, settings=ServingSettings(gap_wait_s=PATIENCE_S))
    for name in NAMES:
        package("1.0", [(variant(name), SEEDS[name])]).write_to(rig.directory)
    yield rig
    rig.stop()


def gaps(rig: Rig) -> tuple[list[Event], int]:
    """Return the events that tell of gaps, and how many gaps were measured."""
    points, events = rig.recorder.drain()
    found = [p for p in points if isinstance(p, HistogramPoint) and p.metric == "switch_gap_ms"]
    return [event for event in events if event.kind == "gap"], len(found)


def waiting(rig: Rig) -> int:
    """Return how many requests wait for the end of a gap."""
    gap = rig.server.router.routes.handover
    return gap.waited if gap is not None else 0


def test_where_there_is_no_room_for_both_the_old_worker_ends_first(rig: Rig) -> None:
    rig.use(variant("first"))
    old = rig.pid
    clients = Crowd(rig.port, {name: rig.expected(name) for name in NAMES})
    with clients:
        clients.wait_for(4)
        prepared = rig.server.prepare(rig.directory, DIGEST, variant("second"), stop_first=True)
        assert not Path(f"/proc/{old}").exists()
        assert rig.server.active is None
        assert not rig.server.router.is_ready
        prepared.worker.probe(timeout_s=PATIENCE_S)
        until(lambda: waiting(rig) == 4, "all clients to wait for the end of the gap")
        rig.server.activate(prepared)
        clients.wait_for(4)
    assert clients.faults == []
    assert set(clients.answers) == {"first", "second"}
    (event,), measured = gaps(rig)
    assert measured == 1
    assert event.data["variant"] == "second"
    assert event.data["gap_ms"] > 1
    assert event.data["waited"] == 4


def test_the_first_worker_needs_no_other_to_end(rig: Rig) -> None:
    rig.server.switch_to(rig.directory, DIGEST, variant("first"), stop_first=True)
    client = rig.client()
    assert infer(client)[:2] == (200, "first")
    client.close()


@pytest.mark.parametrize("how", ["load", "discard"])
def test_what_cannot_follow_gives_way_to_what_served_before(rig: Rig, how: str) -> None:
    rig.use(variant("first"))
    clients = Crowd(rig.port, {name: rig.expected(name) for name in NAMES})
    with clients:
        clients.wait_for(4)
        if how == "load":
            failing = variant("second", options={"fail": "load"})
            with pytest.raises(WorkerLoadError):
                rig.server.prepare(rig.directory, DIGEST, failing, stop_first=True)
        else:
            prepared = rig.server.prepare(rig.directory, DIGEST, variant("second"), stop_first=True)
            rig.server.discard(prepared)
            assert not prepared.worker.is_alive
        clients.wait_for(4)
    assert clients.faults == []
    assert set(clients.answers) == {"first"}
    (event,), _ = gaps(rig)
    assert event.data["variant"] == "first"


def test_a_gap_that_lasts_too_long_is_told_with_when_to_come_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settings=ServingSettings(gap_wait_s=0.2))
    rig.use(variant("first"))
    prepared = rig.server.prepare(rig.directory, DIGEST, variant("first"), stop_first=True)
    client = rig.client()
    body, headers = body_of()
    client.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
    response = client.getresponse()
    assert b"being changed" in response.read()
    assert response.status == 503
    assert int(response.headers["Retry-After"]) >= 1
    hurried = headers | {"Inference-Timeout-Ms": "50"}
    client.request("POST", "/v2/models/digits/infer", body=body, headers=hurried)
    response = client.getresponse()
    assert b"passed" in response.read()
    assert response.status == 504
    rig.server.activate(prepared)
    assert infer(client)[0] == 200
    client.close()
    rig.stop()


def test_a_gap_ends_when_the_model_is_withdrawn(rig: Rig) -> None:
    rig.use(variant("first"))
    prepared = rig.server.prepare(rig.directory, DIGEST, variant("second"), stop_first=True)
    clients = [rig.client() for _ in range(2)]
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda c=client: statuses.append(infer(c)[0]), daemon=True)
        for client in clients
    ]
    for thread in threads:
        thread.start()
    until(lambda: waiting(rig) == 2, "both to wait for the end of the gap")
    rig.server.withdraw()
    for thread in threads:
        finished(thread)
    assert statuses == [503, 503]
    rig.server.discard(prepared)
    assert rig.server.active is None  # what was withdrawn is not brought back
    for client in clients:
        client.close()


def test_stopping_ends_a_gap(rig: Rig) -> None:
    rig.use(variant("first"))
    prepared = rig.server.prepare(rig.directory, DIGEST, variant("second"), stop_first=True)
    rig.server.stop()
    assert not prepared.worker.is_alive
    with pytest.raises(NotServingError):
        rig.server.activate(prepared)
    rig.server.discard(prepared)
    assert rig.server.active is None


def test_a_worker_that_died_in_a_gap_does_not_end_it_for_ever(rig: Rig) -> None:
    rig.use(variant("first"))
    prepared = rig.server.prepare(rig.directory, DIGEST, variant("second"), stop_first=True)
    os.kill(prepared.worker.pid, signal.SIGKILL)
    until(lambda: not prepared.worker.is_alive, "the end of the worker")
    rig.server.discard(prepared)
    client = rig.client()
    assert infer(client)[:2] == (200, "first")
    client.close()
