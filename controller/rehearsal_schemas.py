"""The requests and answers of the HTTP API about rehearsals of rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from controller.domain.rehearsal.results import RehearsedCourse
from controller.rollout_schemas import RolloutRequest
from controller.schemas import Bounds, Request

MAX_RUNS = 100
MAX_SEED = 2**31 - 1


@dataclass(kw_only=True)
class RehearsalRequest(Request):
    """A rollout that is to be rehearsed."""

    rollout: RolloutRequest
    """As for `POST /v1/rollouts`. With an `id`, devices start in the same order in each run."""

    runs: Annotated[int, Bounds(ge=1, le=MAX_RUNS)] = 20
    seed: Annotated[int, Bounds(ge=0, le=MAX_SEED)] = 1
    """The same seed gives the same answer, as long as the fleet and its history stay the same."""

    harm: list[str] = field(default_factory=list)
    """What a bad release does to what gates ask, such as `p95(inference_latency_ms) +10%`."""

    failing_percent: Annotated[float, Bounds(ge=0, le=100)] = 0
    """What share of its installs fails, beside those that fail with any release."""


@dataclass(kw_only=True)
class RehearsedHistory:
    """On what a rehearsal rests."""

    hours: int
    """How far the history of devices goes back."""

    heard: int
    """Devices of the rollout that were heard in that time."""

    borrowed: int
    """The others, which got the history of one of those: of their profile if there is one."""

    installs: int
    """Earlier installs of the model that succeeded: how long an install takes is drawn of them."""

    median_install_s: float
    outcomes: int = 0
    """How many devices of earlier rollouts the shares are of, wherever they are: each counts once
    for each release, when it got it first."""

    failed_percent: float
    """The share of those that failed otherwise than by these two."""

    refused_percent: float
    timed_out_percent: float


@dataclass(kw_only=True)
class Rehearsal:
    """What a rollout would have done. Nothing of it is kept."""

    release: str
    selector: str
    devices: int
    runs: int
    seed: int
    history: RehearsedHistory
    plain: RehearsedCourse
    """With a release like the one that serves."""

    harmed: RehearsedCourse | None = None
    """With the planted harm, in the same runs; None if none was planted."""

    notes: list[str] = field(default_factory=list)
    """What of this rollout the rehearsal does not show."""
