"""How long tests wait for what must come: one limit for all of them.

Rules:
- A test waits for a condition, never for a time: what passes on an idle machine passes on a busy
  one too.
- The limit is generous. Only a test that fails ever waits for so long.
- What must not come is looked for after something that comes later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from wire.clock import SystemClock

PATIENCE_S: Final = 150.0
"""How long to wait. The time limit of a whole test, in `pyproject.toml`, is longer."""

STEP_S: Final = 0.01
_CLOCK: Final = SystemClock()

T = TypeVar("T")


def until(
    question: Callable[[], T | None],
    what: str | Callable[[], str] = "what must come",
    *,
    step_s: float = STEP_S,
) -> T:
    """Ask until there is an answer that is true, and return it.

    Args:
        question: Asked again and again.
        what: What a failure says that it waited for.
        step_s: How long to rest between two questions; longer where asking is much work.
    """
    end_s = _CLOCK.monotonic_s() + PATIENCE_S
    while not (answer := question()):
        if _CLOCK.monotonic_s() > end_s:
            raise AssertionError(f"waited in vain for {what if isinstance(what, str) else what()}")
        _CLOCK.sleep(step_s)
    return answer


def finished(thread: threading.Thread) -> None:
    """Wait for the end of a thread."""
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"{thread.name} goes on"
