"""Records the decisions that change the device's behaviour or the reason for it.

Rules:
- A switch has its own event. This log adds the decisions after which nothing switched.
- Two reasons that differ only in their figures count as one reason.
- Two events of a changed reason are at least `LEAST_GAP_S` apart: a reason that changes back and
  forth must not wear out the flash.
"""

from __future__ import annotations

import re
from typing import Final

from agent.ports import RecorderPort
from agent.select.decisions import Decision
from wire.clock import Clock
from wire.codec import to_builtins

LEAST_GAP_S: Final = 60.0
_FIGURE = re.compile(r"\b\d+(\.\d+)?")


class DecisionLog:
    """Records decisions as events.

    Args:
        recorder: Takes the events.
        clock: For the gap.
    """

    def __init__(self, recorder: RecorderPort, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._told: Decision | None = None
        self._told_s = float("-inf")

    def switched(self, decision: Decision) -> None:
        """Note that the event of a switch already holds a decision."""
        self._told, self._told_s = decision, self._clock.monotonic_s()

    def stayed(self, decision: Decision, release: str) -> None:
        """Record a decision after which nothing switched, if it is new.

        Args:
            decision: The decision.
            release: The release that serves.
        """
        if not is_news(self._told, decision, self._clock.monotonic_s() - self._told_s):
            return
        data = {
            "variant": decision.variant,
            "release": release,
            "stream": decision.stream,
            "levers": decision.levers.reasons,
            "inputs": to_builtins(decision.inputs),
            "verdicts": decision.verdicts,
        }
        self._recorder.event("decision", decision.reason, data)
        self.switched(decision)


def is_news(told: Decision | None, decision: Decision, since_s: float) -> bool:
    """Tell whether a decision is worth an event.

    Args:
        told: The last decision that has an event.
        decision: The newest decision.
        since_s: Time between the two.

    Returns:
        Whether it changes the variant or streaming, or, after `LEAST_GAP_S`, only the reason or
        what the levers are for.
    """
    if told is None or (told.variant, told.stream) != (decision.variant, decision.stream):
        return True
    return since_s >= LEAST_GAP_S and (
        _kind(told.reason) != _kind(decision.reason) or told.levers.causes != decision.levers.causes
    )


def _kind(reason: str) -> str:
    return _FIGURE.sub("#", reason)
