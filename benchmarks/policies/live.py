"""One policy at work on this machine: real workers, an open loop of requests, real neighbours.

Rules:
- Each round starts as an agent does: new workers, nothing learnt, sensors read once a second.
- Requests come by the clock whether or not the last was answered: a latency counts from when its
  request was due, so that no wait is left out.
- The neighbours are processes that end by themselves, and are ended when a round breaks off.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from agent.select.adaptation import Adaptation
from agent.select.decisions import Decision
from agent.select.meter import Meter
from agent.serve.model_server import ModelServer
from agent.serve.router import Router
from agent.serve.routes import InferenceCall
from benchmarks.policies.live_package import INPUT, Made, sample
from telemetry.device.recorder import Recorder
from telemetry.device.sensors import Sensors
from wire.clock import SystemClock
from wire.policy import PolicySpec
from wire.profile import DeviceProfile

CORES: Final = os.cpu_count() or 1
SENSE_S: Final = 1.0
"""As shipped."""

SETTLE_S: Final = 2.0
"""After the first worker is there, before anything is counted."""

CALLERS: Final = 64
"""Threads that wait for answers: as many as may wait for a worker."""

SAMPLES: Final = 8
OK: Final = 200
MS_PER_S: Final = 1000.0
GIB: Final = 2**30
NEIGHBOUR: Final = (
    "import sys, time\n"
    "end_s = time.monotonic() + float(sys.argv[1])\n"
    "while time.monotonic() < end_s: pass\n"
)
PROFILE: Final = DeviceProfile(
    name="here",
    architecture="aarch64" if platform.machine() == "aarch64" else "x86_64",
    cpu_count=CORES,
    memory_bytes=GIB,
    storage_bytes=GIB,
    runtimes=("onnxruntime",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a round is like; the same for every policy."""

    period_s: float
    """Between two requests."""

    cycles: int
    cycle_s: float
    quiet_s: float
    """At the beginning of each cycle, before the neighbours come."""

    busy_s: float

    @property
    def duration_s(self) -> float:
        """Of the round."""
        return self.cycles * self.cycle_s

    @property
    def busy_from_s(self) -> tuple[float, ...]:
        """When the neighbours come, from the beginning of the round."""
        return tuple(n * self.cycle_s + self.quiet_s for n in range(self.cycles))

    def is_busy(self, at_s: float) -> bool:
        """Tell whether the neighbours run at a time of the round."""
        return any(from_s <= at_s < from_s + self.busy_s for from_s in self.busy_from_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a client got."""

    due_s: float
    """From the beginning of the round."""

    latency_ms: float
    variant: str | None
    """None where it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A decision of a round."""

    at_s: float
    variant: str | None
    """That serves after it."""

    decision: Decision | None


@dataclass(slots=True, kw_only=True)
class Round:
    """All that came of a round."""

    answers: list[Answer] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    @property
    def switches(self) -> int:
        """How often another variant came to serve."""
        names = [look.variant for look in self.looks]
        return sum(a != b for a, b in itertools.pairwise(names))


def play(made: Made, spec: PolicySpec, schedule: Schedule, *, pinned: str | None = None) -> Round:
    """Serve a package under a policy for a round.

    Args:
        made: The package.
        spec: The policy.
        schedule: When requests and neighbours come.
        pinned: A variant that serves whatever the policy says.

    Returns:
        Every answer and every decision.

    Raises:
        RuntimeError: Choosing failed.
    """
    done = Round()
    with ExitStack() as stack:
        device = Device(made, spec, pinned)
        stack.callback(device.server.stop)
        device.start()
        beginning_s = time.monotonic() + SETTLE_S
        stack.enter_context(device.choosing(done.looks, beginning_s))
        stack.enter_context(_neighbours(schedule, beginning_s))
        done.answers += _asked(device.server.router, schedule, beginning_s)
    if device.fault is not None:
        raise RuntimeError("choosing failed") from device.fault
    return done


class Device:
    """The parts of an agent that serve and choose.

    Args:
        made: The package.
        spec: The policy.
        pinned: A variant that serves whatever the policy says.
    """

    def __init__(self, made: Made, spec: PolicySpec, pinned: str | None) -> None:
        clock = SystemClock()
        recorder, meter = Recorder(clock), Meter(clock)
        self._package = made.package
        self._sensors = Sensors(PROFILE, clock)
        self.server = ModelServer(recorder, clock, device="here")
        self.server.router.greet(meter.came)
        self.server.router.listen(meter.count)
        self._adaptation = Adaptation(
            self.server,
            PROFILE,
            meter,
            recorder,
            clock,
            benches=self.server.benches,
            cpu_share=PROFILE.threads / CORES,
        )
        self._adaptation.policy = spec
        self._adaptation.pinned = pinned
        self.fault: Exception | None = None

    def start(self) -> None:
        """Bring the package into service."""
        self._adaptation.note(self._sensors.read())
        self._adaptation.serve(self._package, {}, {}, why="start")

    @contextmanager
    def choosing(self, looks: list[Look], beginning_s: float) -> Iterator[None]:
        """Look at the device once a second, in a thread of its own.

        Args:
            looks: Takes what was decided.
            beginning_s: Of the round, by the monotonic clock.
        """
        ended = threading.Event()

        def body() -> None:
            try:
                while not ended.wait(SENSE_S):
                    self._adaptation.tick(self._sensors.read())
                    looks.append(
                        Look(
                            at_s=time.monotonic() - beginning_s,
                            variant=self._adaptation.active()[1],
                            decision=self._adaptation.decision,
                        )
                    )
            except Exception as exc:  # noqa: BLE001 - told by who started the thread
                self.fault = exc

        thread = threading.Thread(target=body, name="adapt")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _neighbours(schedule: Schedule, beginning_s: float) -> Iterator[None]:
    """Keep every core busy when the schedule says so."""
    ended, started = threading.Event(), list[subprocess.Popen[bytes]]()

    def body() -> None:
        for busy_from_s in schedule.busy_from_s:
            if ended.wait(max(beginning_s + busy_from_s - time.monotonic(), 0.0)):
                return
            command = [sys.executable, "-I", "-S", "-c", NEIGHBOUR, str(schedule.busy_s)]
            started.extend(subprocess.Popen(command) for _ in range(CORES))

    thread = threading.Thread(target=body, name="neighbours")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for process in started:
            process.kill()
            process.wait()


def _asked(router: Router, schedule: Schedule, beginning_s: float) -> list[Answer]:
    """Send requests by the clock and wait for all answers."""
    calls = [_call(seed) for seed in range(SAMPLES)]
    futures: list[Future[Answer]] = []
    with ThreadPoolExecutor(CALLERS, thread_name_prefix="caller") as callers:
        for number in range(int(schedule.duration_s / schedule.period_s)):
            due_s = number * schedule.period_s
            time.sleep(max(beginning_s + due_s - time.monotonic(), 0.0))
            call = calls[number % SAMPLES]
            futures.append(callers.submit(_ask, router, call, due_s, beginning_s))
    return [future.result() for future in futures]


def _ask(router: Router, call: InferenceCall, due_s: float, beginning_s: float) -> Answer:
    reply = router.handle(call)
    latency_ms = (time.monotonic() - beginning_s - due_s) * MS_PER_S
    name = json.loads(bytes(reply.body))["parameters"]["variant"] if reply.status == OK else None
    return Answer(due_s=due_s, latency_ms=latency_ms, variant=name)


def _call(seed: int) -> InferenceCall:
    raw = sample(seed)
    tensor = {
        "name": INPUT.name,
        "datatype": INPUT.datatype,
        "shape": [1, *INPUT.shape[1:]],
        "parameters": {"binary_data_size": len(raw)},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    return InferenceCall(
        model="live", version=None, header_length=len(header), body=memoryview(header + raw)
    )
