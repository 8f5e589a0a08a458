"""A worker process: it loads one variant and answers the supervisor's requests.

`agent.serve.spawning` starts `python -P -m agent.serve.worker.process --fd N --lifeline M`. N is
one end of a socket pair (`agent.serve.channel`). M is the reading end of a pipe; the supervisor
holds its other end open and writes nothing to it.

Rules:
- It never outlives its supervisor: when the pipe breaks, the kernel ends the worker and what it has
  started, even in the middle of a run.
- It decides nothing: the supervisor starts it, asks it and ends it.
- It loads only files that are what was signed: it hashes them itself, before and beside the load.
- No request ends it: a wrong request gets a 4xx answer.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from agent.lifeline import hang_on
from agent.serve.capture import Missed
from agent.serve.channel import Channel
from agent.serve.frames import (
    MAX_ERROR_CHARACTERS,
    NO_MEMORY,
    REQUESTS,
    Answer,
    Asked,
    Compare,
    Compared,
    Failed,
    Infer,
    Load,
    ProbeResult,
    Ready,
    Replies,
    Reply,
    Request,
)
from agent.serve.worker.batching import Done, Joiner
from agent.serve.worker.capturing import FAULT, Capturer
from agent.serve.worker.comparing import Comparer
from agent.serve.worker.inference_protocol import InferenceProtocol, InferenceRequest
from agent.serve.worker.naming import Namer
from agent.serve.worker.observing import Observer
from agent.serve.worker.processing import Processing
from agent.serve.worker.signed_files import SignedFiles
from agent.standing_back import stand_back
from runtime_adapters.errors import InputError
from runtime_adapters.golden import check_golden, load_golden
from runtime_adapters.latency import measure_latency_ms
from runtime_adapters.protocol import Limits, Session, Tensors
from runtime_adapters.registry import open_session
from runtime_adapters.tensors import dtype_of
from wire.clock import Clock, SystemClock
from wire.codec import to_builtins
from wire.errors import FleetError, WireFormatError
from wire.package.tensors import TensorSpec

OOM_SCORE_ADJUSTMENT: Final = "500"
"""When memory runs out, the kernel should end a worker, which can be replaced, before the
supervisor."""
TOO_LARGE: Final = "the request needs more memory than this model may use"


class VariantWorker:
    """A loaded variant and how it answers.

    Args:
        load: What to load.
        clock: For measured times.

    Raises:
        IntegrityError: A file of the variant is not what was signed.
        FleetError: The variant cannot be loaded.
    """

    def __init__(self, load: Load, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        if load.stands_back:
            stand_back()  # before there are threads
        release = f"{load.model.name}:{load.model.version}"
        signed = SignedFiles(Path(load.package_directory), load.files, release)
        directory = Path(load.variant_directory)
        # The limit below is not meant for a compiler.
        self._processing = processing = Processing.ready(load.info, directory)
        if load.memory_bytes is not None:
            _limit_memory(load.memory_bytes)
        start_s = clock.monotonic_s()
        self._session: Session = open_session(
            directory,
            load.info,
            Limits(threads=load.threads, memory_bytes=load.memory_bytes),
        )
        loaded_s = clock.monotonic_s()
        description = self._session.describe()
        self._namer = Namer(load.info) if load.model.names_answers else None
        self._protocol = InferenceProtocol(
            inputs=description.inputs,
            outputs=description.outputs,
            model_name=load.model.name,
            model_version=load.model.version,
            parameters=load.model.parameters,
            processing=processing,
            name=self._namer.name if self._namer is not None else str,
        )
        self._observer = Observer(load.info, clock)
        self._capturer = Capturer(load, clock)
        self._comparer = Comparer(load.info, description.kernels)
        self._joiner = Joiner(self._session, description.inputs, description.outputs, clock)
        _warm_up(self._session, description.inputs)
        signed.check_untouched()  # after the first run: a runtime may read some of a file late
        self.ready = Ready(
            description=to_builtins(description) | {"processing": processing.describe()},
            load_ms=(loaded_s - start_s) * 1000,
            warm_up_ms=(clock.monotonic_s() - loaded_s) * 1000,
            rss_bytes=_status_bytes("VmRSS"),
        )

    def answers(self, request: Request) -> Iterator[Answer]:
        """Do what the supervisor asks; yield each answer as soon as it is ready."""
        if isinstance(request, Infer):
            yield from self._infer(request)
        elif isinstance(request, Compare):
            yield self._compare(request)
        elif isinstance(request, Load):
            yield Failed(code="agent.worker", message="a worker loads only one variant")
        else:
            yield self._probe(measure=request.measure)

    def _infer(self, asked: Infer) -> Iterator[Replies]:
        understood: dict[int, InferenceRequest] = {}
        for place, request in enumerate(asked.requests):
            outcome = self._understand(request)
            if isinstance(outcome, InferenceRequest):
                understood[place] = outcome
            else:
                yield Replies(replies=(_refusal(place, outcome),))
        requests = [(place, request.inputs) for place, request in understood.items()]
        for run in self._joiner.run(requests, most_rows=asked.most_rows, stream=asked.stream):
            yield Replies(replies=tuple(self._reply(understood[d.place], d) for d in run))
            for done in run:  # its answer has been sent
                if not isinstance(done.result, Exception):
                    self._observer.look(understood[done.place].inputs, done.result)
                    self._capturer.look(asked.capture, understood[done.place].inputs, done.result)

    def _compare(self, asked: Compare) -> Compared:
        request = self._understand(asked.request)
        if isinstance(request, Exception):
            return Compared(fault=str(request)[:MAX_ERROR_CHARACTERS] or type(request).__name__)
        live = self._comparer.read(request.outputs, asked.answer, asked.answer_header_length)
        if isinstance(live, str):
            return Compared(unlike=live)
        (run,) = self._joiner.run([(0, request.inputs)], most_rows=1, stream=False)
        (done,) = run
        if isinstance(done.result, Exception):
            reason = str(done.result)[:MAX_ERROR_CHARACTERS] or type(done.result).__name__
            return Compared(fault=reason, compute_ms=done.compute_s * 1000)
        agrees, difference = self._comparer.compare(done.result, live)
        return Compared(agrees=agrees, difference=difference, compute_ms=done.compute_s * 1000)

    def _understand(self, request: Asked) -> InferenceRequest | Exception:
        try:
            return self._protocol.decode(request.body, request.header_length, request.regions)
        except Exception as exc:  # noqa: BLE001 - a request must never end the worker
            return exc

    def _reply(self, request: InferenceRequest, done: Done) -> Reply:
        if isinstance(done.result, Exception):
            return _refusal(done.place, done.result)
        try:
            headers, body = self._protocol.encode(request, done.result)
        except Exception as exc:  # noqa: BLE001 - a request must never end the worker
            return _refusal(done.place, exc)
        captured, missed = self._capturer.take()
        return Reply(
            status=200,
            headers=headers,
            body=memoryview(body),
            compute_ms=done.compute_s * 1000,
            place=done.place,
            joined=done.joined,
            samples=done.samples,
            apart=self._joiner.take_fault()[:MAX_ERROR_CHARACTERS],
            seen=self._observer.take(),
            captured=captured,
            missed=missed,
            given=self._namer.given(request.id, done.result) if self._namer is not None else None,
        )

    def _probe(self, *, measure: bool) -> ProbeResult:
        if self._load.asset_directory is None:
            return ProbeResult(
                passed=False,
                samples=0,
                agreement=0.0,
                worst_ratio=0.0,
                detail="the variant has no golden samples",
            )
        assets = Path(self._load.asset_directory)
        # A package that serves already goes on, even if its processing never worked.
        also = self._processing.try_out if measure else None
        result = check_golden(self._session, self._load.info, assets, also=also)
        latency_ms = None
        if measure and result.passed:
            with contextlib.suppress(FleetError):  # then the declared latency holds
                inputs, _ = load_golden(assets)
                latency_ms = measure_latency_ms(self._session, inputs, self._clock)
        return ProbeResult(
            passed=result.passed,
            samples=result.samples,
            agreement=result.agreement,
            worst_ratio=result.worst_ratio,
            detail=result.detail,
            latency_ms=latency_ms,
        )


def serve(channel: Channel[Request], clock: Clock) -> None:
    """Load one variant and answer until the supervisor hangs up.

    Args:
        channel: The connection to the supervisor.
        clock: For measured times.
    """
    with contextlib.suppress(EOFError, OSError):  # the supervisor hung up or is gone
        worker = _load_first(channel, clock)
        while worker is not None:
            try:
                request = channel.receive()
            except MemoryError:
                channel.send(Failed(code=NO_MEMORY, message=TOO_LARGE))
                continue
            for answer in worker.answers(request):
                _send(channel, answer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker process.

    Args:
        arguments: Arguments of the command line; the process's own by default.
    """
    parser = argparse.ArgumentParser(prog="agent.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    # A service manager signals the whole group; the supervisor alone decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_on(options.lifeline)
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


def _send(channel: Channel[Request], answer: Answer) -> None:
    """Send an answer; if it is too large, send each of its replies alone.

    Raises:
        MemoryError: There is not enough memory for an answer of another kind than `Replies`.
        WireFormatError: Such an answer is longer than a frame may be.
    """
    try:
        channel.send(answer)
    except (MemoryError, WireFormatError) as exc:
        if not isinstance(answer, Replies):
            raise
        if any(reply.captured is not None for reply in answer.replies):
            _send(channel, Replies(replies=tuple(map(_without_sample, answer.replies))))
            return
        for reply in answer.replies:
            alone = reply if len(answer.replies) > 1 else _refusal(reply.place, exc)
            _send(channel, Replies(replies=(alone,)))


def _without_sample(reply: Reply) -> Reply:
    """Return an answer that takes no sample along: no client's answer may suffer from that."""
    if reply.captured is None:
        return reply
    missed = (*reply.missed, Missed(reason=FAULT, samples=1))
    return msgspec.structs.replace(reply, captured=None, missed=missed)


def _refusal(place: int, exc: Exception) -> Reply:
    """Return the answer that a client gets for an exception."""
    if isinstance(exc, InputError):
        reply = Reply.refusal(400, str(exc))
    elif isinstance(exc, MemoryError):
        reply = Reply.refusal(413, TOO_LARGE)
    elif isinstance(exc, WireFormatError):
        reply = Reply.refusal(500, f"the answer is too large: {exc}")
    elif isinstance(exc, FleetError):
        reply = Reply.refusal(500, str(exc))
    else:
        reply = Reply.refusal(500, f"the worker failed on this request: {type(exc).__name__}")
    return msgspec.structs.replace(reply, place=place)


def _warm_up(session: Session, specs: Iterable[TensorSpec]) -> None:
    """Run the model once, so that the first client does not pay for lazy initialisation.

    A model may refuse the inputs; that is no error.
    """
    with contextlib.suppress(FleetError):
        session.infer(plain_inputs(specs))


def plain_inputs(specs: Iterable[TensorSpec]) -> Tensors:
    """Return zeros and empty texts of the smallest shape for a model's inputs."""
    return {
        spec.name: np.full(
            [max(size, 1) for size in spec.shape],
            "" if spec.datatype == "BYTES" else 0,
            dtype_of(spec.datatype),
        )
        for spec in specs
    }


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
    """Return a figure of /proc/self/status in bytes; 0 if the kernel does not report it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


if __name__ == "__main__":
    main()
