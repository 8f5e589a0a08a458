"""The record of an answered inference request, from which everything else is counted.

Rules:
- The router makes one record of each request, and everything that is counted comes from it: the
  telemetry below, the statistics of the endpoint, and what the selector learns from.
- The worker says how many samples a request holds: only it reads the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from agent.ports import RequestRecorderPort
from agent.serve.capture import Captured, Missed
from agent.serve.frames import Given, ModelIdentity, Seen
from wire.package.variant import VariantInfo


class Outcome(Enum):
    """The outcome of a request."""

    OK = "ok"
    INVALID = "invalid"
    """The worker says that the request is wrong."""

    FAILED = "failed"
    """The worker could not answer it."""

    REFUSED = "refused"
    """It got no answer: no variant serves, too many wait, its time passed, or workers crashed."""

    UNKNOWN_MODEL = "unknown model"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one answered request."""

    asked_model: str
    """Name of the model that the client asked for."""

    variant: str
    """The variant that answered it, or that was active when it was refused; `none` if none was."""

    release: str
    """Release of that variant."""

    active: ModelIdentity | None
    """The model that is active when the answer is sent, or the version before if the request named
    that."""

    outcome: Outcome
    code: str = ""
    """Code of the error, if the outcome is `REFUSED`."""

    status: int = 200
    """The HTTP status of the answer."""

    request_bytes: int = 0
    """Length of the request's body, decompressed."""

    answer_bytes: int = 0
    """Length of the answer's body, before compression."""

    total_s: float
    """Time from the arrival of the request until its answer was ready, waits included."""

    queue_s: float = 0.0
    """The part of it until the request's turn with the worker began."""

    compute_s: float = 0.0
    """Time in the runtime; a joined request counts its share of the run."""

    samples: int = 1
    """How many samples it holds."""

    joined: int = 1
    """How many requests the same run of the model answered."""

    apart: str = ""
    """Why earlier requests could not be joined, if that is not yet reported; else empty."""

    seen: tuple[Seen, ...] = ()
    """How samples of earlier requests were distributed, if that is not yet reported."""

    captured: Captured | None = None
    """A sample of an earlier request, if one was taken for the operator."""

    missed: tuple[Missed, ...] = ()
    """What was not taken of earlier requests, if that is not yet reported."""

    given: Given | None = None
    """How the answer can be named later, where the device takes feedback."""

    info: VariantInfo | None = None
    """What the variant declares that answered it."""

    deferred: bool = False
    """Whether it waited until the device had nothing better to do."""

    fell_back: bool = False
    """Whether the variant runs elsewhere than it promises, such as on the processor."""

    is_before: bool = False
    """Whether it was for the version before, which is kept beside the one that serves."""


Listener: TypeAlias = Callable[[Answered], None]
"""Called with the record of each request, by any thread. It must be quick and raise nothing."""


def record(recorder: RequestRecorderPort, answered: Answered) -> None:
    """Make telemetry of a request.

    Args:
        recorder: Where figures and events go.
        answered: The record; if it asked for an unknown model, nothing is recorded.
    """
    outcome = answered.outcome
    if outcome is Outcome.UNKNOWN_MODEL or (answered.deferred and outcome is Outcome.REFUSED):
        return  # a deferrable request that is refused waits again
    attributes = {"variant": answered.variant, "release": answered.release}
    if outcome is not Outcome.OK:
        recorder.request(attributes, (("inference_requests_total", 1.0),))
        recorder.request({**attributes, "code": code_of(answered)}, _FAULTS[outcome])
        return
    added = [
        ("inference_requests_total", 1.0),
        ("inference_runs_total", 1.0 / answered.joined),
        ("worker_compute_seconds_total", answered.compute_s),
    ]
    if answered.deferred:
        added.append(("inference_deferred_total", 1.0))
    if answered.fell_back:
        added.append(("inference_fallbacks_total", 1.0))
    if answered.joined > 1:
        added.append(("inference_joined_total", 1.0))
    observed = (
        ("inference_latency_ms", answered.total_s * 1000),
        ("inference_queue_s", answered.queue_s),
        ("inference_runtime_s", answered.compute_s),
        ("inference_batch_requests", answered.joined),
    )
    recorder.request(attributes, added, observed)
    for seen in answered.seen:
        recorder.add(
            "model_samples_total",
            float(seen.samples),
            {
                **attributes,
                "tensor": seen.tensor,
                "measure": seen.measure,
                "bin": str(seen.bin),
            },
        )
    if answered.apart:
        recorder.event(
            "worker", f"requests for this model cannot be joined: {answered.apart}", attributes
        )


_FAULTS: Final[dict[Outcome, tuple[tuple[str, float], ...]]] = {
    Outcome.INVALID: (("inference_invalid_total", 1.0),),
    Outcome.FAILED: (("inference_failures_total", 1.0),),
    Outcome.REFUSED: (("inference_refusals_total", 1.0), ("inference_failures_total", 1.0)),
}
"""What is counted of a request that was not answered, by its outcome."""


def code_of(answered: Answered) -> str:
    """Return why a request was not answered: the code of an error, or the answer's HTTP status."""
    return answered.code or str(answered.status)
