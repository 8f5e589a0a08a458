"""When a shadow may run. Pure.

Rules:
- A shadow is the first thing that goes: any strain of the device, an install and too little memory
  end it.
- Beside what the policy keeps free there stays room for one more worker of the release that serves:
  a switch needs that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from agent.measure.bounds import why_not
from agent.select.levers import CAUSE_TEXTS, Levers
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec

Word: TypeAlias = Literal[
    "battery", "busy", "contention", "failed", "form", "heat", "install", "late", "load", "memory",
    "nothing", "same", "starting",
]  # fmt: skip
"""Why a request was not compared, as telemetry counts it."""


class Hindrance(NamedTuple):
    """Why a shadow may not run now."""

    word: Word
    text: str
    """For people."""


NOTHING_SERVES: Final = Hindrance("nothing", "nothing serves that it could be compared with")
SAME: Final = Hindrance("same", "the same release serves")
INSTALL: Final = Hindrance("install", "an install is under way, and goes first")


def hindrance(
    levers: Levers,
    health: HealthSnapshot,
    spec: PolicySpec,
    *,
    installs: bool,
    needs: Iterable[Variant],
) -> Hindrance | None:
    """Return why a shadow may not run now; None if it may.

    Args:
        levers: What is in force against heat, a low battery and load.
        health: The newest readings.
        spec: The policy.
        installs: Whether an install is under way, or waits.
        needs: What there must be room for: the variant that serves, once more, and the shadow's if
            it does not run yet.
    """
    if installs:
        return INSTALL
    for cause in levers.causes:
        name = CAUSE_TEXTS.get(cause, cause)
        told = [text for text in levers.reasons if text.partition(":")[0] == name]
        return Hindrance(cause, told[0] if told else f"the device is strained: {name}")
    if text := why_not(needs, health, spec):
        return Hindrance("memory", text)
    return None
