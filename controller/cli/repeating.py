"""Asks again and again, and shows each answer in the place of the one before.

Rules:
- On a terminal that can go back an answer takes the place of the one before; elsewhere it is
  printed after it.
- Asking survives a restart of the controller: it waits while the controller does not answer, but
  not for longer than `PATIENCE_S`. The first answer must come at once.
- Ctrl-C ends it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from controller.client.errors import UnreachableError
from wire.clock import Clock, SystemClock
from wire.console.output import is_terminal, remark, terminal_width, write_exact
from wire.console.table import hanging

T = TypeVar("T")

PATIENCE_S: Final = 120.0
"""How long the controller may be unreachable before watching ends."""


class Page(NamedTuple):
    """An answer as people read it."""

    lines: list[str]
    remarks: list[str]
    """What is not part of the answer, but must be said."""


def answers(fetch: Callable[[], T], every_s: float, clock: Clock) -> Iterator[T]:
    """Yield what the controller says, for ever.

    Args:
        fetch: Asks it.
        every_s: Time between two questions.
        clock: Source of time and of waiting.

    Yields:
        Each answer.

    Raises:
        UnreachableError: The controller was unreachable for too long.
    """
    away_since_s: float | None = None
    while True:
        try:
            found = fetch()
        except UnreachableError as exc:
            if away_since_s is None:
                away_since_s = clock.monotonic_s()
                remark(f"fleet: {exc.message}; waiting for it")
            if clock.monotonic_s() - away_since_s > PATIENCE_S:
                raise
        else:
            away_since_s = None
            yield found
        clock.sleep(every_s)


def repeated(fetch: Callable[[], T], every_s: float, *, clock: Clock | None = None) -> Iterator[T]:
    """Yield what the controller says, for ever; a wrong address is told at once.

    Args:
        fetch: Asks it.
        every_s: Time between two questions.
        clock: Source of time and of waiting.

    Yields:
        Each answer.

    Raises:
        UnreachableError: The controller does not answer at first, or was away for too long.
    """
    clock = clock or SystemClock()
    yield fetch()
    clock.sleep(every_s)
    yield from answers(fetch, every_s, clock)


def draw(pages: Iterator[Page]) -> None:
    """Show pages: on a terminal each in the place of the one before, elsewhere after it.

    Args:
        pages: They may never end.
    """
    if is_terminal() and os.environ.get("TERM") != "dumb":
        _redraw(pages)
        return
    for number, page in enumerate(pages):
        if number and page.lines:
            write_exact("")
        write_page(page)
        sys.stdout.flush()


def write_page(page: Page) -> None:
    """Write an answer, and beside it what must be said."""
    for line in page.lines:
        write_exact(line)
    if page.remarks:
        sys.stdout.flush()
    for text in page.remarks:
        for part in hanging(text, terminal_width()):
            remark(part)


def _redraw(pages: Iterator[Page]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for page in pages:
            told = [part for text in page.remarks for part in hanging(text, terminal_width())]
            text = Text.from_ansi("\n".join([*page.lines, *told]), no_wrap=True, overflow="crop")
            live.update(text, refresh=True)
