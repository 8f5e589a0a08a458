"""Whether this device may capture requests for the fleet: the table `[capture]` of `agent.toml`."""

from __future__ import annotations

import msgspec


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and how much this device may capture, whatever the controller asks for."""

    allow: bool = True
    """False: nothing is captured, and what was is removed. Nothing is captured either as long as
    the operator of the fleet does not ask for it."""

    kept_bytes: int = 16 * 1024 * 1024
    """What samples may take on the disk until the controller has them, such as without a
    connection; what comes then is dropped."""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as a line for the operator."""
        return ("capture.kept_bytes is negative",) if self.kept_bytes < 0 else ()
