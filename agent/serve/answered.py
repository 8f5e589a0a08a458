"""The record of an answered inference request, from which everything else is counted.

Rules:
- The router makes one record of each request, and everything that is counted comes from it: the
  telemetry below, the statistics of the endpoint, and what the selector learns from.
- The record does not know how many samples a request holds: only the worker looks inside.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import msgspec

from agent.ports import RecorderPort
from agent.serve.frames import ModelIdentity


class Outcome(Enum):
    """The outcome of a request."""

    OK = "ok"
    INVALID = "invalid"
    """The worker says that the request is wrong."""

    FAILED = "failed"
    """The worker could not answer it."""

    REFUSED = "refused"
    """Nobody answered it: nothing serves, too many wait, its time passed, or workers crashed."""

    UNKNOWN_MODEL = "unknown model"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one answered request."""

    asked_model: str
    """Name of the model that the client asked for."""

    variant: str
    """That answered it, or was active when it was refused; `none` where none was."""

    release: str
    """Of that variant."""

    active: ModelIdentity | None
    """The model that is active when the answer goes out."""

    outcome: Outcome
    code: str = ""
    """Of the error, where the outcome is `REFUSED`."""

    total_s: float
    """From when the request came to when its answer was there, waits included."""

    compute_s: float = 0.0
    """In the runtime; a request that was joined with others has its share of theirs."""

    joined: int = 1
    """Requests that were answered by the same run of the model."""

    apart: str = ""
    """Why requests before this one could not be answered by the same run, where that is news."""


Listener: TypeAlias = Callable[[Answered], None]
"""Hears of each request. For any thread; it is quick and raises nothing."""


def record(recorder: RecorderPort, answered: Answered) -> None:
    """Make telemetry of a request.

    Args:
        recorder: Where figures and events go.
        answered: What came of the request; of a model that is not served nothing is told.
    """
    outcome = answered.outcome
    if outcome is Outcome.UNKNOWN_MODEL:
        return
    attributes = {"variant": answered.variant, "release": answered.release}
    if outcome is Outcome.REFUSED:
        recorder.add("inference_refusals_total", 1.0, {**attributes, "code": answered.code})
    recorder.add("inference_requests_total", 1.0, attributes)
    if outcome in {Outcome.REFUSED, Outcome.FAILED}:
        recorder.add("inference_failures_total", 1.0, attributes)
    if outcome is not Outcome.OK:
        return
    recorder.observe("inference_latency_ms", answered.total_s * 1000, attributes)
    recorder.add("worker_compute_seconds_total", answered.compute_s, attributes)
    if answered.joined > 1:
        recorder.add("inference_joined_total", 1.0, attributes)
    if answered.apart:
        recorder.event(
            "worker", f"requests for this model cannot be joined: {answered.apart}", attributes
        )
