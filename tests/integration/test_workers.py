"""Real worker processes: their life, their deaths, and that nothing outlives the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.serve.errors import (
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerLoadError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, ModelIdentity, Reply
from agent.serve.request_queue import QueuedRequest
from agent.serve.scheduler import Scheduler
from agent.serve.settings import Turn, WorkerLimits
from agent.serve.worker_process import WorkerProcess
from runtime_adapters.golden import save_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.frozen import frozen, until_busy
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.package.distribution import Distribution
from wire.package.golden import Golden, Tolerance
from wire.package.index import asset_uri
from wire.package.variant import Variant

CLOCK = SystemClock()
MODEL = ModelIdentity(name="digits", version="1.0")
INPUTS = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers of the null runtime; they are ended after the test."""
    started: list[WorkerProcess] = []

    def begin(
        *, limits: WorkerLimits | None = None, timeout_s: float = PATIENCE_S, **options: str
    ) -> WorkerProcess:
        chosen = variant("a", options=options)
        package("1.0", [(chosen, b'{"seed": 3}')]).write_to(tmp_path)
        worker = WorkerProcess.start(
            tmp_path,
            chosen,
            model=MODEL,
            limits=limits or WorkerLimits(),
            timeout_s=timeout_s,
        )
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.stop()


def request(rows: int = 1) -> Asked:
    header = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [rows, 4],
                "parameters": {"binary_data_size": rows * 16},
            }
        ]
    }
    content = json.dumps(header).encode()
    return Asked(header_length=len(content), body=memoryview(content + bytes(rows * 16)))


def ask(worker: WorkerProcess, asked: Asked, *, timeout_s: float = PATIENCE_S) -> Reply:
    turn = Turn(timeout_s=timeout_s)
    try:
        worker.hold()
        worker.give([asked], turn)
        replies = worker.take(turn)
    finally:
        worker.let_go()
    assert replies is not None
    (reply,) = replies
    return reply


def infer(worker: WorkerProcess, rows: int = 1, *, timeout_s: float = PATIENCE_S) -> Reply:
    return ask(worker, request(rows), timeout_s=timeout_s)


def infer_in_turn(scheduler: Scheduler) -> Reply:
    queued = QueuedRequest(asked=request(), arrived_s=CLOCK.monotonic_s())
    return scheduler.answer(queued, Turn(timeout_s=PATIENCE_S))


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_loads_and_answers(start: Start) -> None:
    worker = start()
    assert worker.is_alive
    assert worker.description["runtime"] == "null"
    assert worker.load_ms > 0
    assert worker.rss_bytes() > 1024**2
    reply = infer(worker)
    assert reply.status == 200
    document = json.loads(bytes(reply.body))
    assert (document["model_name"], document["model_version"]) == ("digits", "1.0")
    assert reply.compute_ms > 0
    worker.stop()
    worker.stop()
    assert is_gone(worker.pid)
    assert worker.rss_bytes() == 0
    with pytest.raises(WorkerGoneError):
        infer(worker)


def test_a_request_that_is_malformed_costs_nothing(start: Start) -> None:
    worker = start()
    reply = ask(worker, Asked(header_length=None, body=memoryview(b"{")))
    assert reply.status == 400
    assert worker.is_alive


def test_a_runtime_that_fails_is_a_500(start: Start) -> None:
    worker = start(fail="infer")
    assert infer(worker).status == 500
    assert worker.is_alive


@pytest.mark.parametrize(
    ("fail", "error", "text"),
    [
        ("load", WorkerLoadError, "told to fail"),
        ("crash", WorkerCrashedError, "SIGKILL"),
        ("hang", WorkerTimeoutError, "no answer"),
    ],
)
def test_a_worker_that_does_not_come_up(
    start: Start, fail: str, error: type[WorkerError], text: str
) -> None:
    with pytest.raises(error, match=text):
        start(fail=fail, timeout_s=1.0 if fail == "hang" else PATIENCE_S)


def test_unknown_options_are_said_in_one_line(tmp_path: Path) -> None:
    chosen = variant("a", options={"nonsense": "1"})
    package("1.0", [(chosen, b"{}")]).write_to(tmp_path)
    with pytest.raises(WorkerLoadError) as info:
        WorkerProcess.start(
            tmp_path, chosen, model=MODEL, limits=WorkerLimits(), timeout_s=PATIENCE_S
        )
    assert "\n" not in str(info.value)


def test_a_worker_that_crashes_on_a_request(start: Start) -> None:
    worker = start(fail="crash", fail_after="1")
    with pytest.raises(WorkerCrashedError, match="SIGKILL"):
        infer(worker)
    assert not worker.is_alive
    with pytest.raises(WorkerGoneError):
        infer(worker)


def test_a_signal_without_a_name_is_told_by_its_number(start: Start) -> None:
    worker = start()
    number = signal.SIGRTMIN + 1
    os.kill(worker.pid, number)
    with pytest.raises(WorkerCrashedError, match=f"ended by signal {number}"):
        infer(worker)
    assert not worker.is_alive


def test_a_worker_that_hangs_is_ended(start: Start) -> None:
    worker = start(fail="hang", fail_after="1")
    with pytest.raises(WorkerTimeoutError):
        infer(worker, timeout_s=0.2)
    assert is_gone(worker.pid)


def test_a_frozen_worker_is_ended(start: Start) -> None:
    worker = start()
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(WorkerTimeoutError):
        infer(worker, rows=100_000, timeout_s=0.2)
    assert is_gone(worker.pid)


def test_who_waits_for_a_dead_worker_hears_at_once(start: Start) -> None:
    worker = start()
    scheduler = Scheduler(worker, 64, CLOCK)
    faults: list[type[BaseException]] = []

    def wait() -> None:
        try:
            infer_in_turn(scheduler)
        except WorkerError as exc:
            faults.append(type(exc))

    os.kill(worker.pid, signal.SIGSTOP)
    threads = [threading.Thread(target=wait) for _ in range(4)]
    for number, thread in enumerate(threads):
        thread.start()
        until_busy(worker, scheduler, waiting=number)
    os.kill(worker.pid, signal.SIGKILL)
    for thread in threads:
        finished(thread)
    assert sorted(fault.__name__ for fault in faults) == [
        "WorkerCrashedError",
        "WorkerGoneError",
        "WorkerGoneError",
        "WorkerGoneError",
    ]


def test_whoever_finds_a_dead_worker_tells_how_it_died(start: Start) -> None:
    idle, asked = start(), start()
    os.kill(idle.pid, signal.SIGKILL)
    until(lambda: not idle.is_alive, "the end of a worker")
    assert idle.how_it_died == "the worker died while it was idle"

    scheduler = Scheduler(asked, 1, CLOCK)
    told: list[str] = []

    def wait() -> None:
        with pytest.raises(WorkerCrashedError) as caught:
            infer_in_turn(scheduler)
        told.append(str(caught.value))

    os.kill(asked.pid, signal.SIGSTOP)
    thread = threading.Thread(target=wait)
    thread.start()
    until_busy(asked, scheduler, waiting=0)
    os.kill(asked.pid, signal.SIGKILL)
    until(lambda: not asked.is_alive, "the end of a worker")
    told.append(asked.how_it_died)  # before or after the thread that waits has found it
    finished(thread)
    assert told == ["the worker was ended by SIGKILL"] * 2


def test_only_so_many_wait(start: Start) -> None:
    worker = start()
    scheduler = Scheduler(worker, 1, CLOCK)
    threads = [threading.Thread(target=infer_in_turn, args=(scheduler,)) for _ in range(2)]
    with frozen(worker):
        for number, thread in enumerate(threads):
            thread.start()
            until_busy(worker, scheduler, waiting=number)
        with pytest.raises(WorkerBusyError):
            infer_in_turn(scheduler)
    for thread in threads:
        finished(thread)
    assert infer_in_turn(scheduler).status == 200


def test_stopping_ends_a_request(start: Start) -> None:
    worker = start(fail="hang", fail_after="1")
    timer = threading.Timer(0.1, worker.stop, kwargs={"grace_s": 0.1})
    timer.start()
    with pytest.raises(WorkerCrashedError):
        infer(worker)
    timer.join()
    assert is_gone(worker.pid)


def test_a_request_over_the_memory_limit_costs_nothing(start: Start) -> None:
    worker = start(limits=WorkerLimits(memory_bytes=32 * 1024**2))
    turn = Turn(timeout_s=PATIENCE_S)
    worker.hold()
    worker.give([request(rows=4_000_000)], turn)
    assert worker.take(turn) is None
    worker.let_go()
    assert infer(worker).status == 200


def test_requests_over_the_memory_limit_are_refused_and_others_are_answered(start: Start) -> None:
    scheduler = Scheduler(start(limits=WorkerLimits(memory_bytes=32 * 1024**2)), 8, CLOCK)
    asked = request(rows=4_000_000)
    queued = QueuedRequest(asked=asked, arrived_s=CLOCK.monotonic_s(), size_bytes=len(asked.body))
    assert scheduler.answer(queued, Turn(timeout_s=PATIENCE_S)).status == 413
    assert infer_in_turn(scheduler).status == 200


def test_a_worker_gets_a_bare_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    worker = start(limits=WorkerLimits(threads=2))
    environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert b"s3cret" not in environment
    assert b"OMP_NUM_THREADS=2" in environment
    descriptors = Path(f"/proc/{worker.pid}/fd")
    assert len(list(descriptors.iterdir())) == 5  # the usual three, the channel, the lifeline
    assert (descriptors / "0").readlink() == Path("/dev/null")


def test_the_signals_of_a_service_manager_are_left_to_the_supervisor(start: Start) -> None:
    worker = start()
    os.kill(worker.pid, signal.SIGTERM)
    os.kill(worker.pid, signal.SIGINT)
    assert infer(worker).status == 200


def test_a_worker_whose_supervisor_died_while_it_started_ends() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    os.close(writing)
    command = [sys.executable, "-P", "-m", "agent.serve.worker.process"]
    with ours, theirs:
        done = subprocess.run(
            [*command, "--fd", str(theirs.fileno()), "--lifeline", str(reading)],
            pass_fds=(theirs.fileno(), reading), timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    os.close(reading)
    assert done.returncode == -signal.SIGKILL


def test_a_worker_tells_with_its_next_answer_how_samples_are_distributed(tmp_path: Path) -> None:
    by_class = Distribution(
        of="output", tensor="y", measure="class", classes=(0, 1, 2, 3), counts=(9, 9, 9, 9, 0)
    )
    plain = variant("a")
    info = msgspec.structs.replace(plain.info, distributions=(by_class,))
    chosen = msgspec.structs.replace(plain, info=info)
    package("1.0", [(chosen, b'{"seed": 3}')]).write_to(tmp_path)
    worker = WorkerProcess.start(
        tmp_path, chosen, model=MODEL, limits=WorkerLimits(), timeout_s=PATIENCE_S
    )
    first, second, third = (infer(worker, 2) for _ in range(3))
    worker.stop()
    assert first.seen == ()
    (seen,) = second.seen
    assert (seen.tensor, seen.measure, seen.samples) == ("output.y", "class", 2)
    (answer,) = json.loads(bytes(first.body))["outputs"]
    assert seen.bin == int(np.argmax(answer["data"][:4]))
    assert third.seen == (), "a fifth of a second has not passed"


@pytest.mark.parametrize("wrong", ["0", "1"])
def test_the_golden_samples_tell_right_from_wrong(tmp_path: Path, wrong: str) -> None:
    package("1.0", [(variant("a"), b'{"seed": 3}')]).write_to(tmp_path)
    reference = open_session(tmp_path / "variants/a", variant("a").info, Limits())
    files = save_golden(INPUTS, reference.infer(INPUTS))
    uri = asset_uri(files)
    golden = Golden(asset=uri, samples=2, tolerances={"y": Tolerance(absolute=1e-5, relative=1e-5)})
    options = {"wrong": wrong, "delay_ms": "7"}
    chosen: Variant = variant("a", options=options, golden=golden)
    package("1.0", [(chosen, b'{"seed": 3}')], assets={uri: files}).write_to(tmp_path)
    worker = WorkerProcess.start(
        tmp_path, chosen, model=MODEL, limits=WorkerLimits(), timeout_s=PATIENCE_S
    )
    result = worker.probe(timeout_s=PATIENCE_S)
    measured = worker.probe(timeout_s=PATIENCE_S, measure=True)
    worker.stop()
    assert result.latency_ms is None
    assert msgspec.structs.replace(measured, latency_ms=None) == result
    assert result.passed == (wrong == "0")
    assert bool(result.detail) == (wrong == "1")
    if wrong == "1":
        assert measured.latency_ms is None, "what fails its test is not measured"
    else:
        assert measured.latency_ms is not None
        assert measured.latency_ms >= 7.0


def test_a_variant_without_golden_samples_has_not_passed(start: Start) -> None:
    assert not start().probe(timeout_s=PATIENCE_S).passed


SUPERVISOR = """
import sys, threading
from pathlib import Path
from agent.serve.settings import WorkerLimits
from agent.serve.worker_process import WorkerProcess
from tests.integration.test_workers import MODEL, infer
from tests.simulators.packages import variant

def start(**options):
    chosen = variant("a", options=options)
    return WorkerProcess.start(
        Path(sys.argv[1]), chosen, model=MODEL, limits=WorkerLimits(), timeout_s=150
    )

idle, hanging = start(), start(fail="hang", fail_after="1")
threading.Thread(target=lambda: infer(hanging, timeout_s=60), daemon=True).start()
print(idle.pid, hanging.pid, flush=True)
threading.Event().wait()
"""


def test_workers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    package("1.0", [(variant("a"), b"{}")]).write_to(tmp_path)
    root = Path(__file__).parents[2]
    environment: dict[str, Any] = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=environment,
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(is_gone(pid) for pid in pids)
        supervisor.kill()
        until(lambda: all(is_gone(pid) for pid in pids), "the end of all workers")
