"""A worker process as the supervisor sees it: start, ask, end.

Rules:
- A worker talks with one caller at a time: who asks something else waits until all requests that it
  has are answered.
- The supervisor ends a worker at once when it fails in any way, so that it never answers the wrong
  request.
- Only the end of a process frees all its memory. What it has started ends with it.
- A worker that has a request and uses no processor time for some seconds hangs; it is ended long
  before the limit for a slow one. One that waits for the disk does not hang.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from agent.errors import StorageError
from agent.package_files import SignedFile
from agent.serve import process_figures
from agent.serve.errors import (
    WorkerCrashedError,
    WorkerGoneError,
    WorkerLoadError,
    WorkerTimeoutError,
)
from agent.serve.frames import (
    ANSWERS,
    NO_MEMORY,
    Answer,
    Asked,
    Channel,
    Compare,
    Compared,
    Failed,
    Infer,
    Load,
    ModelIdentity,
    Probe,
    ProbeResult,
    Ready,
    Replies,
    Reply,
    Request,
    Signed,
)
from agent.serve.settings import Turn, WorkerLimits
from agent.serve.spawning import kill_group, spawn
from wire.clock import Clock, SystemClock
from wire.errors import FleetError, IntegrityError, WireFormatError
from wire.package.index import asset_directory
from wire.package.variant import Variant

END_GRACE_S: Final = 1.0
"""How long a worker may take to end by itself before it is killed."""

HANG_S: Final = 3.0
USUAL_TURNS: Final = 20.0
"""A worker hangs only after so many times what its turns usually take: one that waits for an
accelerator uses no processor time either."""

READS_BYTES_PER_S: Final = 4 * 1024 * 1024
"""What the slowest storage gives, such as a worn memory card: a worker may take this time longer to
start, because it hashes its files."""

ENDED: Final = "the worker has ended"
IDLE_DEATH: Final = "the worker died while it was idle"

FAULTS: Final[dict[str, type[FleetError]]] = {
    kind.code: kind for kind in (IntegrityError, StorageError)
}
"""Faults of its files that a worker tells; any other is that the variant cannot be loaded."""

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
        self._process, sock, self._lifeline = spawn(limits.threads)
        self._channel = Channel(sock, ANSWERS, clock)
        self._turn = threading.Lock()
        self._end_lock = threading.Lock()
        self._ended = False
        self.why_ended = ENDED
        """The error text for requests that come afterwards."""

        self._ready = Ready(description={}, load_ms=0.0, warm_up_ms=0.0, rss_bytes=0)
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._start_s = 0.0
        self._left: deque[set[int]] = deque()
        """Which places of the requests that it has are not answered, for each turn."""

        self._asked_s: float | None = None
        """Since when it has the request that it runs; None while it has none."""

        self._looked: tuple[float, int] = (0.0, 0)
        """The request that it had at the last look, and its processor time then, in ticks."""

        self._looked_s = 0.0
        """The first look that found both as they are."""

        self._hang = ""

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
            worker.load(package, variant, model, timeout_s=timeout_s, files=files)
        except BaseException:
            worker.stop(grace_s=0)
            raise
        return worker

    def load(
        self,
        package: Path,
        variant: Variant,
        model: ModelIdentity,
        *,
        timeout_s: float,
        files: Sequence[SignedFile] = (),
    ) -> None:
        """Let the process load a variant. This happens once per process.

        Args:
            package: The package's directory.
            variant: One of its variants.
            model: The identity that the worker puts into its answers.
            timeout_s: How long it may take, without hashing the files.
            files: What was signed of all files that the variant needs; none to compare none.

        Raises:
            IntegrityError: A file differs from what was signed.
            StorageError: A file cannot be read.
            WorkerLoadError: The variant cannot be loaded.
            WorkerCrashedError: The process ended.
            WorkerTimeoutError: It took too long.
        """
        golden = variant.info.golden
        request = Load(
            stands_back=self._limits.stands_back,
            package_directory=str(package),
            files=tuple(
                Signed(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
                for file in files
            ),
            variant_directory=str(package / variant.directory),
            asset_directory=str(package / asset_directory(golden.asset)) if golden else None,
            info=variant.info,
            threads=self._limits.threads,
            memory_bytes=self._limits.memory_bytes,
            model=model,
        )
        hashing_s = sum(file.size_bytes for file in files) / READS_BYTES_PER_S
        self._ready = self._ask(request, Ready, timeout_s + hashing_s)
        self._start_s = self._clock.monotonic_s() - self._began_s

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def threads(self) -> int:
        """Threads that it may use."""
        return self._limits.threads

    @property
    def is_alive(self) -> bool:
        """Whether the process can still be asked something."""
        return not self._ended and self._process.poll() is None

    @property
    def how_it_died(self) -> str:
        """How a process ended that is not alive, found by another than who waits for its answer."""
        is_asked = self._asked_s is not None  # read first: who waits says why before it is None
        if self._hang or (self.why_ended == ENDED and is_asked):
            return self._obituary()
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
        asked_s, now_s = self._asked_s, self._clock.monotonic_s()
        ticks = None if asked_s is None else process_figures.processor_ticks(self.pid)
        if asked_s is None or ticks is None or (asked_s, ticks) != self._looked:
            self._looked, self._looked_s = (asked_s or 0.0, ticks or 0), now_s
            return
        idle_s = now_s - self._looked_s
        if idle_s >= HANG_S and now_s - asked_s >= USUAL_TURNS * usual_s:
            self._hang = f"the worker hung: it had a request and did nothing for {idle_s:.0f} s"
            kill_group(self.pid)

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
        self._left.clear()
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
        self._left.append(set(range(len(requests))))
        try:
            self._channel.send(frame, timeout_s=turn.timeout_s)
        except (BrokenPipeError, ConnectionResetError) as exc:
            # It had ended before these requests came: they are not to blame.
            self._end(grace_s=END_GRACE_S)
            self.why_ended = self._obituary()
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
        left = self._left[0]
        try:
            answer = self._channel.receive(timeout_s=turn.timeout_s)
            if isinstance(answer, Failed) and answer.code == NO_MEMORY:
                left.clear()
                replies = None
            else:
                replies = _expected(answer, Replies).replies
                for reply in replies:
                    _take(left, reply.place)
        except BaseException as exc:  # noqa: BLE001 - `_fail` raises it
            self._fail(exc, turn.timeout_s)
        if not left:
            self._left.popleft()
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
                return _expected(self._channel.receive(timeout_s=timeout_s), kind)
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
            self.why_ended = self._obituary()
            raise WorkerCrashedError(self.why_ended) from exc
        raise exc

    def _end(self, *, grace_s: float) -> None:
        """Wake the threads that wait for the process and end it."""
        self.hang_up()
        with self._end_lock:
            if self._lifeline.closed:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            kill_group(self.pid)  # also what the worker left behind
            self._process.wait()
            self._lifeline.close()

    def _obituary(self) -> str:
        if self._hang:
            return self._hang
        code = self._process.wait()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:  # Python has no names for most real-time signals
                name = f"signal {-code}"
            return f"the worker was ended by {name}"
        return f"the worker ended with exit code {code}"


def _expected(answer: Answer, kind: type[A]) -> A:
    """Return an answer of the kind that was asked for.

    Raises:
        IntegrityError: A file of the variant differs from what was signed.
        StorageError: A file of the variant cannot be read.
        WorkerLoadError: The worker could not do what it was asked.
        WireFormatError: It is of another kind.
    """
    if isinstance(answer, Failed):
        raise FAULTS.get(answer.code, WorkerLoadError)(answer.message, remedy=answer.remedy)
    if not isinstance(answer, kind):
        raise WireFormatError(f"it sent a {type(answer).__name__}")
    return answer


def _take(left: set[int], place: int) -> None:
    """Remove the request that a reply is for.

    Raises:
        WireFormatError: No such request waits.
    """
    if place not in left:
        raise WireFormatError(f"it answered request {place}, which does not wait")
    left.remove(place)
