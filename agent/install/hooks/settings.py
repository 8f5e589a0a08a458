"""What an operator decides about hooks: the table `[hooks]` of the agent's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

LONGEST_S: Final = 7 * 86_400.0


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the hooks are, and for how long they may hold an install."""

    directory: Path | None = None
    """The directory of the hooks, such as `/etc/edgefleet/hooks.d`. Without it no hook runs. If it
    is set and cannot be read, nothing is installed: a veto that nobody heard is worse."""

    timeout_s: float = 60.0
    """How long one hook may run. An install waits meanwhile, and so does a rollout."""

    retry_s: float = 60.0
    """After this time a hook that said `later` is asked again."""

    delay_s: float = 1800.0
    """How long hooks may delay one install in all."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as one line; nothing if the settings can be used."""
        values = {"timeout_s": self.timeout_s, "retry_s": self.retry_s}
        wrong = [name for name, value in values.items() if not 0 < value <= LONGEST_S]
        lines = [f"hooks.{name} is not above 0, or is above 7 days" for name in wrong]
        if not 0 <= self.delay_s <= LONGEST_S:
            lines.append("hooks.delay_s is negative or above 7 days")
        return tuple(lines)
