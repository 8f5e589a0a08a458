"""Settings of `[capture]` in `controller.toml`: how much of what devices capture is kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and how much is kept of what devices captured. The controller cannot read it."""

    keep_days: float = 30.0
    """A sample that is older is deleted, whether it was pulled or not."""

    max_samples: int = 10_000
    """Of one model; what comes beyond is refused."""

    max_bytes: int = 1024**3
    """What the samples of one model may take."""


def faults(config: CaptureConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    for name in ("keep_days", "max_samples", "max_bytes"):
        if not getattr(config, name) > 0:
            yield f"capture.{name} is not positive"
