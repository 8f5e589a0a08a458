"""Whether this device runs shadows for the fleet: the table `[shadow]` of `agent.toml`."""

from __future__ import annotations

import msgspec


class ShadowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and how much a second release may run beside the one that serves."""

    allow: bool = True
    """False: none runs, whatever the controller asks for. None runs either as long as the operator
    of the fleet does not ask for it."""

    time_share: float = 0.1
    """The share of the time in which it may compute: after each request it rests so long."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as a line for the operator."""
        if 0.0 < self.time_share <= 1.0:
            return ()
        return ("shadow.time_share is not above 0 and at most 1",)
