"""Which decisions about a rollout are told to webhooks, and in which words. Pure.

Rules:
- An event is a row of the rollout's log, and has its number: what comes again has the same one, and
  later events of the rollout have greater ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.alert_posts import FORM, group_key
from controller.domain.states import RolloutOrder
from wire.codec import to_json

_KINDS: Final = {
    "create": "created",
    "advance": "stage-begun",
    "shadow": "shadow-begun",
    "shadow-pass": "shadow-passed",
    "approve": "approved",
    RolloutOrder.PAUSE: "paused",
    RolloutOrder.RESUME: "resumed",
    RolloutOrder.HALT: "halted",
    RolloutOrder.ABORT: "aborted",
    RolloutOrder.FINISH: "finished",
}
"""What is told of an action in the log; of others nothing is."""

_WAITS: Final = re.compile(r"stage \d+ waits for approval\b")
_GATE_FAILED: Final = re.compile(r"gate .+ failed: ")
_SHADOW_FAILED: Final = re.compile(r"the shadow before stage \d+ failed: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutNotice:
    """An event of a rollout, as webhooks are told."""

    number: int
    rollout: str
    event: str
    model: str
    release: str
    stage: int
    reason: str
    actor: str
    at_s: float


def kind_of(action: str, reason: str) -> str | None:
    """Return what webhooks are told of a row of the log; None for what they are not.

    Args:
        action: What was decided.
        reason: Why.
    """
    if action == "hold" and _WAITS.match(reason):
        return "waits-for-approval"
    if action == RolloutOrder.HALT and _GATE_FAILED.match(reason):
        return "gate-failed"
    if action == RolloutOrder.HALT and _SHADOW_FAILED.match(reason):
        return "shadow-failed"
    return _KINDS.get(action)


def key_of(rollout: str) -> str:
    """Return what keeps the events of a rollout in order; no rule of alerts has it."""
    return group_key("", f"rollout={rollout}")


def rollout_body(identifier: str, webhook: str, notice: RolloutNotice, *, now_s: float) -> str:
    """Return what is posted.

    Args:
        identifier: Of the post.
        webhook: The name of the receiver.
        notice: The event.
        now_s: Wall time.
    """
    content: dict[str, Any] = {
        "form": FORM,
        "id": identifier,
        "webhook": webhook,
        "created_at_s": now_s,
        "test": False,
        "alerts": [],
        "rollouts": [
            {
                "number": notice.number,
                "rollout": notice.rollout,
                "event": notice.event,
                "model": notice.model,
                "release": notice.release,
                "stage": notice.stage,
                "reason": notice.reason,
                "actor": notice.actor,
                "at_s": notice.at_s,
            }
        ],
    }
    return to_json(content).decode()
