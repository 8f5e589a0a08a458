"""Answers for programs: JSON and CSV. What people read is written by `wire.console.output`.

Rules:
- JSON on a terminal is read by people: control and format characters in it are escaped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Final

from wire.codec import to_builtins, to_pretty_json
from wire.console.output import write_exact
from wire.console.text import plain_json

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - wide
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DIVIDERS: Final = ',;\t"\r\n'
"""In some countries, spreadsheets divide cells at semicolons."""


def write_json(value: object) -> None:
    """Write an answer of the controller as indented JSON, its fields in their own order."""
    write_exact(plain_json(json.dumps(to_builtins(value), indent=2, ensure_ascii=False)))


def write_plain_json(value: object) -> None:
    """Write the packager's structs, or plain values, as indented JSON with sorted keys."""
    write_exact(plain_json(to_pretty_json(value).decode().rstrip()))


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write comma-separated values with a heading; an unknown value is empty.

    Devices choose some of the texts. A spreadsheet takes a cell for a formula if it begins with
    certain characters: such a text, unless it is a number, gets an apostrophe before it. Texts with
    what may divide cells are quoted.

    Source:
        OWASP, "CSV Injection".
    """
    lines = [",".join(map(_cell, row)) or '""' for row in (columns, *rows)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _cell(value: object) -> str:
    if not isinstance(value, str):
        return "" if value is None else str(value)
    text = f"'{value}" if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value) else value
    if any(char in text for char in _DIVIDERS):
        text = '"' + text.replace('"', '""') + '"'
    return text
