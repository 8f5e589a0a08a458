"""Bounds on serving, how requests are run, and why the defaults are what they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_BATCH: Final = 256
MAX_QUEUE_DELAY_MS: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How requests are run. May be changed while the model serves.

    Raises:
        ValueError: A number is out of bounds.
    """

    max_batch: int = 8
    """Requests, and samples, that may be joined into one run. Most of what joining can save is
    saved by eight, and the eighth waits for no more than seven others."""

    max_queue_delay_ms: float = 0.0
    """How long a request waits for others to join it. By default only those that wait already
    are joined, which delays nobody."""

    stream: bool = False
    """Whether to join nothing and to run even the samples of one request one at a time: it takes
    the least memory and the most time."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_batch <= MAX_BATCH:
            raise ValueError(f"max_batch is not within 1 to {MAX_BATCH}")
        if not 0 <= self.max_queue_delay_ms <= MAX_QUEUE_DELAY_MS:
            raise ValueError(f"max_queue_delay_ms is not within 0 to {MAX_QUEUE_DELAY_MS:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The bounds of one exchange with a worker."""

    timeout_s: float
    """How long the worker may take for each of its answers."""

    max_batch: int = 1
    """Requests and samples that may be joined."""

    max_queue_delay_s: float = 0.0
    stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What a worker may use."""

    threads: int = 1
    memory_bytes: int | None = None
    """Greatest growth of its data segment while it loads and runs, in bytes; None for no limit."""

    waiting: int = 64
    """Requests that may wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Bounds on the workers and on waiting for them.

    Raises:
        ValueError: A time is out of bounds.
    """

    limits: WorkerLimits = field(default_factory=WorkerLimits)
    start_timeout_s: float = 20.0
    """Less than systemd's watchdog allows, because the daemon may be waiting for it."""

    probe_timeout_s: float = 20.0
    infer_timeout_s: float = 30.0
    """A worker that does not answer for so long is taken to hang."""

    drain_s: float = 5.0
    """How long a worker may go on answering after a switch."""

    gap_wait_s: float = 10.0
    """How long a request waits while one worker has ended so that the next has room to start. Large
    models load within it, and clients commonly wait for longer."""

    mode: Mode = field(default_factory=Mode)
    """How requests are run at first."""

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "probe_timeout_s", "infer_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is not positive")
        if self.drain_s < 0 or self.gap_wait_s < 0:
            raise ValueError("drain_s or gap_wait_s is negative")
