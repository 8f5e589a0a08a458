"""Bounds on serving, how requests are run, and why the defaults are what they are."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from agent.serve.capture import Capture

MAX_BATCH: Final = 256
MAX_QUEUE_DELAY_MS: Final = 100.0


CONNECTIONS: Final = 128
"""Open connections of the endpoint. More than requests may wait for a worker, so that an urgent one
gets in and takes the place of a less urgent one."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are run. May be changed while the model serves.

    Raises:
        ValueError: A number is out of bounds.
    """

    max_batch: int = 8
    """How many requests, and samples, one run may join. Eight give most of what joining can save,
    and the eighth waits for only seven others."""

    max_queue_delay_ms: float = 0.0
    """How long a request waits for others to join it. By default the scheduler joins
    only requests that wait already, which delays no request."""

    stream: bool = False
    """Whether to join no requests and to run the samples of each request one at a time. This takes
    the least memory and the most time."""

    joins: bool = True
    """Whether requests may be joined at all; under heat they are not."""

    longest_wait_s: float = math.inf
    """How long a request may wait that has no deadline of its own; finite under load, when a late
    answer would only make those after it late too."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise ValueError(f"max_batch is not within 1 to {MAX_BATCH}")
        if not 0 <= self.max_queue_delay_ms <= MAX_QUEUE_DELAY_MS:
            raise ValueError(f"max_queue_delay_ms is not within 0 to {MAX_QUEUE_DELAY_MS:g}")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one exchange with a worker."""

    timeout_s: float
    """How long the worker may take for each of its answers."""

    max_batch: int = 1
    """Requests and samples that may be joined."""

    max_queue_delay_s: float = 0.0
    stream: bool = False
    batches: bool = False
    """Whether a request may hold several samples."""

    capture: Capture | None = None
    """Which requests the operator wants."""


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker may use."""

    threads: int = 1
    memory_bytes: int | None = None
    """Greatest growth of its data segment while it loads and runs, in bytes; None for no limit."""

    waiting: int = 64
    """Requests that may wait for it."""

    stands_back: bool = False
    """Whether all else on the device has the processor, the disk and the memory first."""


class Workers(msgspec.Struct, frozen=True):
    """How many workers a variant gets, and how many threads each of them."""

    count: int
    threads: int


def workers_for(asked: int, *, threads: int, processors: int) -> Workers:
    """Share the processors of a device among the workers that a policy asks for.

    Args:
        asked: How many workers, at least 1.
        threads: Threads that one worker may use by itself.
        processors: Of the device; more workers than these would only wait for each other.

    Returns:
        How many there should be, so that all their threads together have a processor each.
    """
    count = max(1, min(asked, processors))
    return Workers(count, max(1, min(threads, processors // count)))


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the workers and on waiting for them.

    Raises:
        ValueError: A time is out of bounds.
    """

    limits: WorkerLimits = msgspec.field(default_factory=WorkerLimits)
    processors: int = 1
    """Of the device; workers of one model share them."""

    start_timeout_s: float = 20.0
    """How long a worker may start and load its model, and how long its golden test may take. Less
    than systemd's watchdog allows, because the daemon may be waiting for it."""

    infer_timeout_s: float = 30.0
    """A worker that does not answer within this time counts as hung."""

    drain_s: float = 5.0
    """How long a worker may go on answering after a switch."""

    gap_wait_s: float = 10.0
    """How long a request waits after one worker has ended to make room for the next. Large models
    load within this time, and clients commonly wait for longer."""

    mode: Mode = msgspec.field(default_factory=Mode)
    """How requests are run at first."""

    names_answers: bool = False
    """Whether each answer has an id and is told to listeners by it, for feedback."""

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "infer_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is not positive")
        if self.drain_s < 0 or self.gap_wait_s < 0:
            raise ValueError("drain_s or gap_wait_s is negative")
