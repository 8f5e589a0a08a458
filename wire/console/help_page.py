"""Help pages: one form for every command of `fleet` and `fleet-agent`.

Rules:
- The parts always come in the order usage, text, arguments, options, commands, examples; a part
  without entries is left out.
- Every command has examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from wire.console.table import wrap

MAX_WIDTH: Final = 80
MAX_NAME: Final = 26
"""The text of a longer name begins on a line of its own."""
INDENT: Final = "  "
JOINED: Final = "\N{NO-BREAK SPACE}"
HELP_TEXT: Final = "Show this help and exit."
VERSION_TEXT: Final = "Show the version and exit."


class Entry(NamedTuple):
    """A line of a part: an argument, an option or a command."""

    name: str
    """As it is typed, with the name of its value: `-o, --output DIR`."""

    text: str
    notes: tuple[str, ...] = ()
    """The remarks in brackets after the text: `required`, `default: 1h`."""


class HelpPage(NamedTuple):
    """The content of a help page."""

    usage: str
    """The program, the command, and what follows them."""

    text: str
    """Paragraphs, with an empty line between two."""

    arguments: Sequence[Entry] = ()
    options: Sequence[Entry] = ()
    commands: Sequence[Entry] = ()
    examples: Sequence[str] = ()


def render(page: HelpPage, columns: int) -> str:
    """Return a help page as text, ending with a newline.

    Args:
        page: Its content.
        columns: Columns of the terminal; a page is never wider than 80.

    Returns:
        The text.
    """
    width = min(columns, MAX_WIDTH)
    first, *more = wrap(f"Usage: {page.usage}", width - len("Usage: "))
    lines = [first, *(f"{'':7}{line}" for line in more)]
    for paragraph in page.text.split("\n\n"):
        lines += ["", *(INDENT + line for line in _filled(paragraph, width - len(INDENT)))]
    parts = (
        ("Arguments", page.arguments),
        ("Options", page.options),
        ("Commands", page.commands),
    )
    for title, entries in parts:
        if entries:
            lines += ["", f"{title}:", *_entry_lines(entries, width)]
    if page.examples:
        lines += ["", "Examples:", *(INDENT + example for example in page.examples)]
    return "\n".join(lines) + "\n"


def _entry_lines(entries: Sequence[Entry], width: int) -> list[str]:
    column = min(max(len(entry.name) for entry in entries), MAX_NAME) + 2 * len(INDENT)
    lines = []
    for entry in entries:
        notes = [f"[{note}]".replace(" ", JOINED) for note in entry.notes]
        first, *more = _filled(" ".join([entry.text, *notes]), width - column)
        head = INDENT + entry.name
        if len(head) + len(INDENT) > column:
            lines.append(head)
            more.insert(0, first)
        else:
            lines.append(f"{head:{column}}{first}")
        lines += [f"{'':{column}}{line}" for line in more]
    return lines


def _filled(text: str, width: int) -> list[str]:
    words = [word for word in text.split(" ") if word.strip(" \n")]
    lines = wrap(" ".join(" ".join(words).split("\n")), width)
    return [line.replace(JOINED, " ") for line in lines]
