"""A worker process: one loaded variant, answering one request at a time.

Started by `agent.serving.workers` as `python -P -m agent.serving.worker --fd N --lifeline M`. N is
one end of a socket pair (`agent.serving.frames`), M the reading end of a pipe that nobody writes
to.

Rules:
- It never outlives its supervisor: the kernel ends it when the lifeline breaks, whatever it does.
- It decides nothing: it is started, asked and ended by the supervisor.
- No request ends it: what is wrong with a request goes back as a 4xx answer.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import resource
import signal
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from agent.serving.frames import (
    REQUESTS,
    Answer,
    Channel,
    Failed,
    Infer,
    Load,
    ProbeResult,
    Ready,
    Reply,
    Request,
)
from agent.serving.inference_protocol import InferenceProtocol
from runtime_adapters.errors import InputError
from runtime_adapters.golden import check_golden
from runtime_adapters.protocol import Limits, Session
from runtime_adapters.registry import open_session
from runtime_adapters.tensors import dtype_of
from wire.clock import Clock, SystemClock
from wire.codec import to_builtins
from wire.errors import FleetError, WireFormatError
from wire.manifest import TensorSpec

OOM_SCORE_ADJUSTMENT: Final = "500"
"""When memory runs out the kernel should take a worker, which is replaced, not the supervisor."""
NO_MEMORY: Final = "the request needs more memory than this model may use"


class VariantWorker:
    """A loaded variant and how it answers.

    Args:
        load: What to load.
        clock: For measured times.

    Raises:
        FleetError: The variant cannot be loaded.
    """

    def __init__(self, load: Load, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        if load.memory_bytes is not None:
            _limit_memory(load.memory_bytes)
        start_s = clock.monotonic_s()
        self._session: Session = open_session(
            Path(load.variant_directory),
            load.info,
            Limits(threads=load.threads, memory_bytes=load.memory_bytes),
        )
        loaded_s = clock.monotonic_s()
        description = self._session.describe()
        self._protocol = InferenceProtocol(
            inputs=description.inputs,
            outputs=description.outputs,
            model_name=load.model_name,
            model_version=load.model_version,
            parameters=load.parameters,
        )
        _warm_up(self._session, description.inputs)
        self.ready = Ready(
            description=to_builtins(description),
            load_ms=(loaded_s - start_s) * 1000,
            warm_up_ms=(clock.monotonic_s() - loaded_s) * 1000,
            rss_bytes=_status_bytes("VmRSS"),
        )

    def answer(self, request: Request) -> Answer:
        """Do what the supervisor asks."""
        if isinstance(request, Infer):
            return self._infer(request)
        if isinstance(request, Load):
            return Failed(code="agent.worker", message="a worker loads one variant in its life")
        return self._probe()

    def _infer(self, request: Infer) -> Reply:
        try:
            understood = self._protocol.decode(request.body, request.header_length)
            start_s = self._clock.monotonic_s()
            outputs = self._session.infer(understood.inputs)
            compute_ms = (self._clock.monotonic_s() - start_s) * 1000
            headers, body = self._protocol.encode(understood, outputs)
        except InputError as exc:
            return Reply.refusal(400, str(exc))
        except FleetError as exc:
            return Reply.refusal(500, str(exc))
        except MemoryError:
            return Reply.refusal(413, NO_MEMORY)
        except Exception as exc:  # noqa: BLE001 - a request must never end the worker
            return Reply.refusal(500, f"the worker failed on this request: {type(exc).__name__}")
        return Reply(status=200, headers=headers, body=memoryview(body), compute_ms=compute_ms)

    def _probe(self) -> ProbeResult:
        if self._load.asset_directory is None:
            return ProbeResult(
                passed=False,
                samples=0,
                agreement=0.0,
                worst_ratio=0.0,
                detail="the variant has no golden samples",
            )
        result = check_golden(self._session, self._load.info, Path(self._load.asset_directory))
        return ProbeResult(
            passed=result.passed,
            samples=result.samples,
            agreement=result.agreement,
            worst_ratio=result.worst_ratio,
            detail=result.detail,
        )


def serve(channel: Channel[Request], clock: Clock) -> None:
    """Load one variant and answer until the supervisor hangs up.

    Args:
        channel: To the supervisor.
        clock: For measured times.
    """
    with contextlib.suppress(EOFError, OSError):  # the supervisor hung up or is gone
        worker = _load_first(channel, clock)
        while worker is not None:
            try:
                channel.send(worker.answer(channel.receive()))
            except MemoryError:
                channel.send(Reply.refusal(413, NO_MEMORY))
            except WireFormatError as exc:
                channel.send(Reply.refusal(500, f"the answer is too large: {exc}"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker process.

    Args:
        arguments: Of the command line; the process's own by default.
    """
    parser = argparse.ArgumentParser(prog="agent.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    # A service manager signals the whole group; the supervisor alone decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang_on(options.lifeline)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJUSTMENT)
    clock = SystemClock()
    serve(Channel(socket.socket(fileno=options.fd), REQUESTS, clock), clock)


def _load_first(channel: Channel[Request], clock: Clock) -> VariantWorker | None:
    request = channel.receive()
    if not isinstance(request, Load):
        return None
    try:
        worker = VariantWorker(request, clock)
    except FleetError as exc:
        channel.send(Failed(code=exc.code, message=exc.message, remedy=exc.remedy))
        return None
    except MemoryError:
        channel.send(
            Failed(code="agent.worker.load", message="loading needs more memory than allowed")
        )
        return None
    channel.send(worker.ready)
    return worker


def _warm_up(session: Session, specs: Iterable[TensorSpec]) -> None:
    """Run the model once, so that the first client does not pay for lazy initialisation.

    Zeros of the least shape need not be an input that this model takes; that is no fault.
    """
    inputs = {
        spec.name: np.zeros([max(size, 1) for size in spec.shape], dtype_of(spec.datatype))
        for spec in specs
        if spec.datatype != "BYTES"
    }
    with contextlib.suppress(FleetError):
        session.infer(inputs)


def _hang_on(lifeline: int) -> None:
    """Have the kernel end this process when the other end of a pipe is closed.

    A pipe with O_ASYNC signals SIGIO when its last writer goes; by default that signal terminates,
    and unlike a thread it needs no turn of the interpreter, which native code may be holding.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def _limit_memory(growth_bytes: int) -> None:
    """Bound the growth of the data segment from now on.

    Raises:
        FleetError: The kernel refused the limit.
    """
    limit_bytes = _status_bytes("VmData") + growth_bytes
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    except (OSError, ValueError, OverflowError) as exc:
        raise FleetError(f"the memory limit of {limit_bytes} bytes was refused: {exc}") from exc


def _status_bytes(field: str) -> int:
    """Return a figure of /proc/self/status in bytes; 0 when the kernel does not say."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


if __name__ == "__main__":
    main()
