"""A worker process as the supervisor sees it: start, ask, end.

Rules:
- A worker talks with one caller at a time: who asks something else waits until all requests that it
  has are answered.
- The supervisor ends a worker at once when it fails in any way, so that it never answers the wrong
  request.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from agent.errors import StorageError
from agent.package_files import SignedFile
from agent.serve import process_figures
from agent.serve.channel import Channel
from agent.serve.errors import (
    WorkerCrashedError,
    WorkerGoneError,
    WorkerLoadError,
    WorkerTimeoutError,
)
from agent.serve.frames import (
    ANSWERS,
    Asked,
    Compare,
    Compared,
    Infer,
    ModelIdentity,
    Probe,
    ProbeResult,
    Ready,
    Reply,
    Request,
)
from agent.serve.settings import Turn, WorkerLimits
from agent.serve.worker_life import WorkerLife
from agent.serve.worker_talk import Unanswered, expected, load_request
from wire.clock import Clock, SystemClock
from wire.errors import IntegrityError, WireFormatError
from wire.package.variant import Variant

END_GRACE_S: Final = 1.0
"""How long a worker may take to end by itself before it is killed."""

READS_BYTES_PER_S: Final = 4 * 1024 * 1024
"""What the slowest storage gives, such as a worn memory card: a worker may take this time longer to
start, because it hashes its files."""

ENDED: Final = "the worker has ended"
IDLE_DEATH: Final = "the worker died while it was idle"

A = TypeVar("A")


class WorkerProcess:
    """A process that loads a variant and runs it. `start` makes a worker that is ready.

    Args:
        limits: What it may use.
        clock: For deadlines.

    Raises:
        WorkerLoadError: No process can be started.
    """

    def __init__(self, limits: WorkerLimits, clock: Clock) -> None:
        self._limits = limits
        self._life = WorkerLife(limits.threads)
        self._channel = Channel(self._life.socket, ANSWERS, clock)
        self._turn = threading.Lock()
        self._ended = False
        self.why_ended = ENDED
        """The error text for requests that come afterwards."""

        self._ready = Ready(description={}, load_ms=0.0, warm_up_ms=0.0, rss_bytes=0)
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._start_s = 0.0
        self._unanswered = Unanswered()
        self._asked_s: float | None = None
        """Since when it has the request that it runs; None while it has none."""

    @classmethod
    def start(
        cls,
        package: Path,
        variant: Variant,
        *,
        model: ModelIdentity,
        limits: WorkerLimits,
        timeout_s: float,
        clock: Clock | None = None,
        files: Sequence[SignedFile] = (),
    ) -> WorkerProcess:
        """Start a process and let it load a variant.

        Args:
            package: The package's directory.
            variant: One of its variants.
            model: The identity that the worker puts into its answers.
            limits: What it may use.
            timeout_s: How long starting and loading may take, without hashing the files.
            clock: For deadlines.
            files: What was signed of all files that the variant needs; none to compare none.

        Returns:
            A worker that is ready and warm.

        Raises:
            IntegrityError: A file differs from what was signed.
            StorageError: A file cannot be read.
            WorkerLoadError: The variant cannot be loaded, or no process can be started.
            WorkerCrashedError: The process ended while it loaded.
            WorkerTimeoutError: It took too long.
        """
        worker = cls(limits, clock or SystemClock())
        try:
            worker._load(package, variant, model, files, timeout_s)
        except BaseException:
            worker.stop(grace_s=0)
            raise
        return worker

    def _load(
        self,
        package: Path,
        variant: Variant,
        model: ModelIdentity,
        files: Sequence[SignedFile],
        timeout_s: float,
    ) -> None:
        """Let the process load a variant, as `start` says. This happens once per process."""
        request = load_request(package, variant, model, self._limits, files)
        hashing_s = sum(file.size_bytes for file in files) / READS_BYTES_PER_S
        self._ready = self._ask(request, Ready, timeout_s + hashing_s)
        self._start_s = self._clock.monotonic_s() - self._began_s

    @property
    def pid(self) -> int:
        """The process."""
        return self._life.pid

    @property
    def threads(self) -> int:
        """Threads that it may use."""
        return self._limits.threads

    @property
    def is_alive(self) -> bool:
        """Whether the process can still be asked something."""
        return not self._ended and self._life.is_running

    @property
    def how_it_died(self) -> str:
        """How a process ended that is not alive, found by another than who waits for its answer."""
        is_asked = self._asked_s is not None  # read first: who waits says why before it is None
        if self._life.hang or (self.why_ended == ENDED and is_asked):
            return self._life.obituary()
        return IDLE_DEATH if self.why_ended == ENDED else self.why_ended

    @property
    def description(self) -> dict[str, Any]:
        """Runtime, version, devices and fallback, as plain values."""
        return self._ready.description

    @property
    def load_ms(self) -> float:
        """How long loading took, without the start of the process."""
        return self._ready.load_ms

    @property
    def start_s(self) -> float:
        """How long the process took from its start until it was ready."""
        return self._start_s

    def rss_bytes(self) -> int:
        """Return the resident size of the process, in bytes; 0 when it has ended."""
        return process_figures.rss_bytes(self.pid)

    def end_if_hung(self, usual_s: float) -> None:
        """End the process if it hangs; called about once a second.

        Args:
            usual_s: How long a turn usually takes.
        """
        self._life.end_if_hung(self._asked_s, now_s=self._clock.monotonic_s(), usual_s=usual_s)

    def hold(self) -> None:
        """Keep the worker for requests, when it is this caller's turn; `let_go` ends that.

        Raises:
            WorkerGoneError: The process had ended before; the worker is held all the same.
        """
        self._turn.acquire()
        if self._ended:
            raise WorkerGoneError(self.why_ended)
        self._asked_s = self._clock.monotonic_s()

    def let_go(self) -> None:
        """End what `hold` began, once; the thread need not be the same."""
        self._asked_s = None
        self._unanswered.clear()
        self._turn.release()

    def give(self, requests: Sequence[Asked], turn: Turn) -> None:
        """Send requests that clients sent. The worker answers them after those that it has.

        Args:
            requests: What clients sent.
            turn: How requests are run and how long the worker may take to read them.

        Raises:
            WorkerGoneError: The process had ended before.
            WorkerTimeoutError: It did not read them in time and was ended.
        """
        frame = Infer(
            requests=tuple(requests),
            most_rows=turn.max_batch,
            stream=turn.stream,
            capture=turn.capture,
        )
        self._unanswered.add(len(requests))
        try:
            self._channel.send(frame, timeout_s=turn.timeout_s)
        except (BrokenPipeError, ConnectionResetError) as exc:
            # It had ended before these requests came: they are not to blame.
            self._end(grace_s=END_GRACE_S)
            self.why_ended = self._life.obituary()
            raise WorkerGoneError(self.why_ended) from exc
        except BaseException as exc:  # noqa: BLE001 - `_fail` raises it
            self._fail(exc, turn.timeout_s)

    def take(self, turn: Turn) -> Sequence[Reply] | None:
        """Wait for some answers to the first requests that have not been answered.

        Args:
            turn: How they are run and how long the worker may take for an answer.

        Returns:
            The answers, each with the place of its request; one may say that the request is
            malformed. None if the worker has no memory for these requests together.

        Raises:
            WorkerCrashedError: The process ended.
            WorkerTimeoutError: It did not answer in time and was ended.
        """
        try:
            replies = self._unanswered.take(self._channel.receive(timeout_s=turn.timeout_s))
        except BaseException as exc:  # noqa: BLE001 - `_fail` raises it
            self._fail(exc, turn.timeout_s)
        if self._unanswered.ends_turn():
            self._asked_s = self._clock.monotonic_s()
        return replies

    def probe(self, *, timeout_s: float, measure: bool = False) -> ProbeResult:
        """Run the golden samples.

        Args:
            timeout_s: How long it may take.
            measure: Whether the variant is new here. Then its processing is tried too, and the
                latency of one sample is measured.

        Returns:
            The verdict.

        Raises:
            WorkerCrashedError: The process ended.
            WorkerTimeoutError: It did not answer in time and was ended.
        """
        return self._ask(Probe(measure=measure), ProbeResult, timeout_s)

    def compare(self, request: Compare, *, timeout_s: float) -> Compared:
        """Run a request that another release has answered.

        Args:
            request: It, and that answer.
            timeout_s: How long it may take.

        Returns:
            How the answers differ.

        Raises:
            WorkerCrashedError: The process ended.
            WorkerTimeoutError: It did not answer in time and was ended.
        """
        return self._ask(request, Compared, timeout_s)

    def hang_up(self) -> None:
        """Let the process end by itself, without waiting for it; `stop` must follow."""
        self._ended = True
        self._channel.hang_up()

    def stop(self, *, grace_s: float = END_GRACE_S) -> None:
        """End the process; a request that it is working on fails. Calling it twice is safe.

        Args:
            grace_s: How long it may take to end by itself.
        """
        self._end(grace_s=grace_s)
        with self._turn:
            self._channel.close()

    def _ask(self, request: Request, kind: type[A], timeout_s: float) -> A:
        """Send a request and wait for the answer, when it is this caller's turn.

        Raises:
            IntegrityError: A file of the variant differs from what was signed.
            StorageError: A file of the variant cannot be read.
            WorkerLoadError: The worker could not do it.
            WorkerGoneError: The process had ended before.
            WorkerCrashedError: The process ended.
            WorkerTimeoutError: It did not answer in time and was ended.
        """
        try:
            self.hold()
            try:
                self._channel.send(request, timeout_s=timeout_s)
                return expected(self._channel.receive(timeout_s=timeout_s), kind)
            except BaseException as exc:  # noqa: BLE001 - `_fail` raises it
                self._fail(exc, timeout_s)
        finally:
            self.let_go()

    def _fail(self, exc: BaseException, timeout_s: float) -> NoReturn:
        """End the worker after an error, and raise what its caller should hear.

        Args:
            exc: The error; after one that the worker told it goes on.
            timeout_s: How long the worker had.

        Raises:
            WorkerCrashedError: The process ended, or sent an unexpected answer.
            WorkerTimeoutError: It did not answer in time and was ended.
        """
        if isinstance(exc, WorkerLoadError | IntegrityError | StorageError):
            raise exc
        lost = isinstance(exc, EOFError | OSError) and not isinstance(exc, TimeoutError)
        self._end(grace_s=END_GRACE_S if lost else 0)
        if isinstance(exc, TimeoutError):
            self.why_ended = f"no answer from the worker in {timeout_s:g} s"
            raise WorkerTimeoutError(self.why_ended) from None
        if isinstance(exc, WireFormatError):
            self.why_ended = f"the worker sent a wrong answer: {exc.message}"
            raise WorkerCrashedError(self.why_ended) from exc
        if lost:
            self.why_ended = self._life.obituary()
            raise WorkerCrashedError(self.why_ended) from exc
        raise exc

    def _end(self, *, grace_s: float) -> None:
        """Wake the threads that wait for the process and end it."""
        self.hang_up()
        self._life.end(grace_s)
