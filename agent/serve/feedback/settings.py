"""Whether a device takes feedback, and for how long: the table `[feedback]` of `agent.toml`."""

from __future__ import annotations

import math
from typing import Final

import msgspec

MAX_ANSWERS: Final = 65_536


class FeedbackSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether applications may say which answers were right, and what is remembered for it."""

    enabled: bool = False
    """Off by default: where nobody knows the truth, no answer should cost anything for it."""

    answers: int = 10_000
    """The newest answers that feedback can be about: ten a second for a quarter of an hour, in some
    1.5 MB of memory."""

    keep_s: float = 86_400.0
    """How old an answer may be: a person who looks through the day's doubtful ones is in time."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as a line; empty if nothing is."""
        rules = (
            (
                1 <= self.answers <= MAX_ANSWERS,
                f"feedback.answers is not within 1 to {MAX_ANSWERS}",
            ),
            (0 < self.keep_s < math.inf, "feedback.keep_s is not above 0"),
        )
        return tuple(text for holds, text in rules if not holds)
