"""Tells when a worker hangs: it has a request, and uses no processor time. Pure.

Rules:
- One that waits for the disk does not hang.
- Nor does one that waits for an accelerator: it uses no processor time either, so that only what
  takes many times as long as usual counts.
"""

from __future__ import annotations

from typing import Final

HANG_S: Final = 3.0
USUAL_TURNS: Final = 20.0
"""A worker hangs only after so many times what its turns usually take."""


class HangWatch:
    """What was seen of a worker, look by look; about one in a second."""

    def __init__(self) -> None:
        self._seen: tuple[float, int] = (0.0, 0)
        """The request that it had at the last look, and its processor time then, in ticks."""

        self._since_s = 0.0
        """The first look that found both as they are."""

    def look(
        self, asked_s: float | None, ticks: int | None, *, now_s: float, usual_s: float
    ) -> str:
        """Return why the worker hangs; empty if it does not.

        Args:
            asked_s: Since when it has the request that it runs; None while it has none.
            ticks: Its processor time; None if it has ended or waits for the disk.
            now_s: The time of this look.
            usual_s: How long a turn usually takes.
        """
        if asked_s is None or ticks is None or (asked_s, ticks) != self._seen:
            self._seen, self._since_s = (asked_s or 0.0, ticks or 0), now_s
            return ""
        idle_s = now_s - self._since_s
        if idle_s < HANG_S or now_s - asked_s < USUAL_TURNS * usual_s:
            return ""
        return f"the worker hung: it had a request and did nothing for {idle_s:.0f} s"
