"""Keeps the gRPC process running: starts it, waits for its end, starts it again.

Rules:
- The supervisor imports nothing of gRPC: it holds two pipes and one thread that sleeps.
- The token goes through a pipe, never through a command line or the environment.
- After each end the next start waits longer, up to a minute; after a minute of service it does not.
- One event tells why gRPC is not served. If another start would fail just so, there is none.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Final

from agent.grpc_endpoint.setup import STOP_SIGNAL, Setup, Told
from agent.link.outage import Repeats
from agent.log import Log
from agent.ports import RecorderPort
from agent.serve.errors import EndpointError
from agent.serve.spawning import environment, kill_group
from wire.clock import Clock
from wire.codec import from_json, to_json
from wire.errors import FleetError, shortened

MODULE: Final = "agent.grpc_endpoint.process"
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
STEADY_S: Final = 60.0
"""After so long a run the next wait is the first again."""

END_S: Final = 2.0
"""How long the process may take to end by itself."""

MAX_LINE_BYTES: Final = 64 * 1024
MAX_REASON: Final = 400
EXTRA_ENVIRONMENT: Final = {"GRPC_VERBOSITY": "NONE", "MALLOC_ARENA_MAX": "1"}
"""gRPC writes no lines of its own into the agent's log, and takes one arena for all its threads."""


def next_wait_s(last_s: float, ran_s: float) -> float:
    """Return how long to wait before the next start.

    Args:
        last_s: The wait before; 0 if there was none.
        ran_s: How long the process ran after it.
    """
    if ran_s >= STEADY_S:
        return FIRST_WAIT_S
    return min(max(last_s * 2, FIRST_WAIT_S), LONGEST_WAIT_S)


class GrpcKeeper:
    """The gRPC process as the supervisor sees it.

    Args:
        setup: Where and how it serves.
        open_endpoint: Lets the endpoint listen on its private socket; called once.
        recorder: Takes the events; its log does too.
        log: Takes a line with the address whenever it serves.
        clock: For how long it ran.
    """

    def __init__(
        self,
        setup: Setup,
        open_endpoint: Callable[[], None],
        recorder: RecorderPort,
        log: Log,
        clock: Clock,
    ) -> None:
        self.address = ""
        """Where it listens; empty while it does not."""

        self._setup = setup
        self._open_endpoint = open_endpoint
        self._recorder = recorder
        self._log = log
        self._clock = clock
        self._repeats = Repeats(clock)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        """None once it has been waited for: its number may be another's then."""

        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)

    @property
    def is_trying(self) -> bool:
        """Whether the process runs, or will be started again."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the process, and again whenever it has ended; this waits for nothing."""
        try:
            self._open_endpoint()
        except FleetError as exc:
            self._report(Told(fault=exc.message, remedy=exc.remedy))
            return
        self._thread.start()

    def stop(self, *, grace_s: float = END_S) -> None:
        """End the process for good. Calling it twice is safe.

        Args:
            grace_s: How long it may take to end by itself.
        """
        self._stopping.set()
        with self._lock:
            process = self._process
            if process is not None:
                process.send_signal(signal.Signals[STOP_SIGNAL])
        if not self._thread.is_alive():
            return
        self._thread.join(grace_s)
        with self._lock:
            if self._process is not None:
                kill_group(self._process.pid)
        self._thread.join()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            began_s = self._clock.monotonic_s()
            told = self._run_once()
            if self._stopping.is_set():
                return
            self._report(told)
            if told.is_final:
                return
            wait_s = next_wait_s(wait_s, self._clock.monotonic_s() - began_s)
            self._stopping.wait(wait_s)

    def _run_once(self) -> Told:
        """Start the process and wait for its end; return why it does not serve any more."""
        with self._lock:
            if self._stopping.is_set():
                return Told()
            try:
                process = self._process = _spawn()
            except OSError as exc:
                return Told(fault=f"cannot start a process: {(exc.strerror or str(exc)).lower()}")
        told = Told()
        with process:
            if process.stdin is not None and process.stdout is not None:
                with contextlib.suppress(OSError):  # it has ended, and its output may say why
                    process.stdin.write(to_json(self._setup) + b"\n")
                told = self._follow(process.stdout, process.pid)
            self.address = ""
            with self._lock:
                self._process = None
                code = _ended(process)
        return told if told.fault else Told(fault=_ending(code))

    def _follow(self, output: IO[bytes], pid: int) -> Told:
        """Read what the process tells until it ends; return the last of it."""
        told = Told()
        while line := output.readline(MAX_LINE_BYTES):
            try:
                told = from_json(line, Told, limit_bytes=MAX_LINE_BYTES)
            except FleetError:
                continue
            self.address = told.address
            if told.address:
                self._log.write("grpc-ready", address=told.address, pid=pid)
        return told

    def _report(self, told: Told) -> None:
        where = self._setup.address
        error = EndpointError(f"gRPC is not served on {where}: {told.fault}", remedy=told.remedy)
        reason = shortened(str(error), MAX_REASON)
        if self._repeats.is_new(reason):
            self._recorder.event("grpc", reason, {"code": error.code})


def _spawn() -> subprocess.Popen[bytes]:
    """Start the process.

    Raises:
        OSError: The system cannot start another one.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # what a process that has ended did not read is not tried again
        env=environment(1) | EXTRA_ENVIRONMENT,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process that has closed its output; return its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    kill_group(process.pid)
    return process.wait()


def _ending(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:  # Python has no names for most real-time signals
        return f"its process was ended by signal {-code}"
