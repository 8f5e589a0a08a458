"""How many requests each version of a model has answered, and how long that took.

Rules:
- The counters of a version start with its first request. Two versions are counted at a time.
- As the extension has it, the figures of time count a request once, `inference_count` counts its
  samples, and `execution_count` the runs of the model: joined requests share one.

Source:
    Triton Inference Server, protocol/extension_statistics.md.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from agent.serve.answered import Answered, Outcome
from agent.serve.frames import ModelIdentity
from wire.clock import Clock

SUCCESS: Final = "success"
FAIL: Final = "fail"
QUEUE: Final = "queue"
COMPUTE: Final = "compute_infer"


KEPT: Final = 2
"""The version that serves, and the one before, which may be kept beside it."""


class _Figures:
    """Figures of one version."""

    __slots__ = ("kinds", "last_ms", "runs", "samples")

    def __init__(self) -> None:
        self.last_ms = 0
        self.samples = 0
        self.runs = 0.0
        self.kinds = {kind: [0, 0] for kind in (SUCCESS, FAIL, QUEUE, COMPUTE)}
        """A count and nanoseconds for each kind."""

    def add(self, kind: str, took_s: float) -> None:
        figure = self.kinds[kind]
        figure[0] += 1
        figure[1] += int(took_s * 1e9)


class Statistics:
    """Figures of a model, for each version that serves.

    Args:
        clock: For the time of the last request.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._versions: dict[tuple[str, str], _Figures] = {}
        """As many as may be loaded; the one that was asked least recently gives way."""

    def count(self, answered: Answered) -> None:
        """Count a request, if it is for a version that serves.

        Args:
            answered: The record of the request.
        """
        model = answered.active
        if model is None or answered.asked_model != model.name:
            return
        is_ok = answered.outcome is Outcome.OK
        with self._lock:
            figures = self._of(model)
            figures.last_ms = int(self._clock.now_s() * 1000)
            figures.add(SUCCESS if is_ok else FAIL, answered.total_s)
            if is_ok:
                figures.add(QUEUE, answered.queue_s)
                figures.add(COMPUTE, answered.compute_s)
                figures.samples += answered.samples
                figures.runs += 1.0 / answered.joined

    def document(self, model: ModelIdentity) -> dict[str, Any]:
        """Return the figures of a version, an item of `model_stats` in the statistics extension.

        Args:
            model: The version.
        """
        with self._lock:
            figures = self._of(model)
            kinds = {
                kind: {"count": count, "ns": ns} for kind, (count, ns) in figures.kinds.items()
            }
            last_ms, samples, runs = figures.last_ms, figures.samples, round(figures.runs)
        return {
            "name": model.name,
            "version": model.version,
            "last_inference": last_ms,
            "inference_count": samples,
            "execution_count": runs,
            "inference_stats": kinds,
        }

    def _of(self, model: ModelIdentity) -> _Figures:
        key = (model.name, model.version)
        figures = self._versions.get(key)
        if figures is None:
            if len(self._versions) >= KEPT:
                del self._versions[min(self._versions, key=lambda k: self._versions[k].last_ms)]
            figures = self._versions[key] = _Figures()
        return figures
