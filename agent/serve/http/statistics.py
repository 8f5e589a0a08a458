"""How many requests the model that serves has answered, and how long that took.

Rules:
- The counters start with the first request; another model or version starts at zero.
- A request counts once, however many samples it holds: only the worker reads them. Figures that
  need the number of samples are left out.

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
                self._add(COMPUTE, answered.compute_s)

    def document(self, model: ModelIdentity) -> dict[str, Any]:
        """Return the figures in the form of the statistics extension.

        Args:
            model: The model that serves.
        """
        with self._lock:
            self._begin(model)
            figures = {
                kind: {"count": count, "ns": ns} for kind, (count, ns) in self._figures.items()
            }
            last_ms = self._last_ms
        return {
            "model_stats": [
                {
                    "name": model.name,
                    "version": model.version,
                    "last_inference": last_ms,
                    "inference_stats": figures,
                }
            ]
        }

    def _begin(self, model: ModelIdentity) -> None:
        if self._model != (model.name, model.version):
            self._model = (model.name, model.version)
            self._last_ms = 0
            self._figures = {kind: [0, 0] for kind in (SUCCESS, FAIL, COMPUTE)}

    def _add(self, kind: str, took_s: float) -> None:
        figure = self._figures[kind]
        figure[0] += 1
        figure[1] += int(took_s * 1e9)
