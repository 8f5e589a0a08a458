"""Answers for programs: JSON and CSV. What people read is written by `wire.console.output`.

Rules:
- JSON on a terminal is read by people: control and format characters in it are escaped.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence

from wire.codec import to_builtins, to_pretty_json
from wire.console.output import write_exact
from wire.console.text import plain_json


def write_json(value: object) -> None:
    """Write an answer of the controller as indented JSON, its fields in their own order."""
    write_exact(plain_json(json.dumps(to_builtins(value), indent=2, ensure_ascii=False)))


def write_plain_json(value: object) -> None:
    """Write the packager's structs, or plain values, as indented JSON with sorted keys."""
    write_exact(plain_json(to_pretty_json(value).decode().rstrip()))


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write comma-separated values with a heading; an unknown value is empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    sys.stdout.write(buffer.getvalue())
