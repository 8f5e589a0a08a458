"""How many requests the model that serves has answered, and how long that took.

Rules:
- The counters start with the first request; another model or version starts at zero.
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


class Statistics:
    """Figures of one model at a time.

    Args:
        clock: For the time of the last request.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._model = ("", "")
        self._last_ms = 0
        self._samples = 0
        self._runs = 0.0
        self._figures: dict[str, list[int]] = {}
        """A count and nanoseconds for each kind."""

    def count(self, answered: Answered) -> None:
        """Count a request, if it is for the model that is active.

        Args:
            answered: The record of the request.
        """
        model = answered.active
        if model is None or answered.asked_model != model.name:
            return
        is_ok = answered.outcome is Outcome.OK
        with self._lock:
            self._begin(model)
            self._last_ms = int(self._clock.now_s() * 1000)
            self._add(SUCCESS if is_ok else FAIL, answered.total_s)
            if is_ok:
                self._add(QUEUE, answered.queue_s)
                self._add(COMPUTE, answered.compute_s)
                self._samples += answered.samples
                self._runs += 1.0 / answered.joined

    def document(self, model: ModelIdentity) -> dict[str, Any]:
        """Return the figures, an item of `model_stats` in the statistics extension.

        Args:
            model: The model that serves.
        """
        with self._lock:
            self._begin(model)
            figures = {
                kind: {"count": count, "ns": ns} for kind, (count, ns) in self._figures.items()
            }
            last_ms, samples, runs = self._last_ms, self._samples, round(self._runs)
        return {
            "name": model.name,
            "version": model.version,
            "last_inference": last_ms,
            "inference_count": samples,
            "execution_count": runs,
            "inference_stats": figures,
        }

    def _begin(self, model: ModelIdentity) -> None:
        if self._model != (model.name, model.version):
            self._model = (model.name, model.version)
            self._last_ms, self._samples, self._runs = 0, 0, 0.0
            self._figures = {kind: [0, 0] for kind in (SUCCESS, FAIL, QUEUE, COMPUTE)}

    def _add(self, kind: str, took_s: float) -> None:
        figure = self._figures[kind]
        figure[0] += 1
        figure[1] += int(took_s * 1e9)
