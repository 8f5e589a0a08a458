"""Bounds on serving, and why they are what they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.serve.modes import Mode
from agent.serve.workers import WorkerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Bounds on the workers and on waiting for them."""

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
    """What `Serving.mode` is at first."""

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "probe_timeout_s", "infer_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is not positive")
        if self.drain_s < 0 or self.gap_wait_s < 0:
            raise ValueError("drain_s or gap_wait_s is negative")
