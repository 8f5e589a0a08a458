"""In which form an answer is wanted, and where a file goes.

Rules:
- Text goes to standard output. A file of bytes goes where `--output` says, or to standard output if
  that is no terminal.
- What a form needs, and is not installed, is told before the controller is asked.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from controller.cli.errors import ArgumentError
from controller.cli.output import write_csv, write_json
from wire.console.output import is_terminal
from wire.files import write_named

TABLE, JSON, CSV, PARQUET, PLOT, PNG = "table", "json", "csv", "parquet", "plot", "png"
ALL: Final = (TABLE, JSON, CSV, PARQUET, PLOT, PNG)
RECORDS: Final = (TABLE, JSON, CSV, PARQUET)
"""For what is a list, and no figure of groups or of time."""

NEEDED: Final = {PARQUET: ("pyarrow", "parquet"), PNG: ("matplotlib", "plots")}
"""For each form of bytes: the library, and the extra that brings it."""

FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="table, json, csv, parquet, plot (in the terminal) or png; the default is table.",
    ),
]
RecordsFormatOption = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="table, json, csv or parquet; the default is table."
    ),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print as CSV.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where the file of parquet or png goes."),
]
RecordsOutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where the file of parquet goes."),
]

Kind = str
"""`text`, `number`, `whole` or `flag`."""


class Form(NamedTuple):
    """How an answer is shown."""

    name: str
    output: Path | None = None


def chosen_form(
    name: str,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    output: Path | None = None,
    possible: Collection[str] = ALL,
) -> Form:
    """Return the form that options ask for.

    Args:
        name: Of `--format`; empty if it was not given.
        as_json: Whether there was `--json`.
        as_csv: Whether there was `--csv`.
        output: Of `--output`.
        possible: The forms that a command has.

    Returns:
        The form.

    Raises:
        ArgumentError: They contradict each other, or something is missing for it.
    """
    asked = {JSON: as_json, CSV: as_csv}
    given = {f"--{each}": each for each, wanted in asked.items() if wanted}
    given |= {f"--format {name}": name} if name else {}
    if len(set(given.values())) > 1:
        raise ArgumentError(
            f"{' and '.join(given)} exclude each other", remedy="choose one of them"
        )
    chosen = checked_format(next(iter(given.values()), TABLE), possible)
    if chosen in NEEDED:
        _check_installed(chosen)
        if output is None and is_terminal():
            raise ArgumentError(
                f"--format {chosen} makes a file, and no terminal shows it",
                remedy="add --output FILE, or write it to a pipe",
            )
    elif output is not None:
        files = " and ".join(each for each in NEEDED if each in possible)
        raise ArgumentError(f"--output is for files of {files}", remedy="write > FILE instead")
    return Form(chosen, output)


def checked_format(name: str, possible: Collection[str]) -> str:
    """Return the name of a form; empty stays empty.

    Args:
        name: As it was typed.
        possible: The forms that a command has.

    Raises:
        ArgumentError: The command has no such form.
    """
    if name and name not in possible:
        raise ArgumentError(
            f"--format: {name[:40]!r} is not possible here", remedy=f"write {_either(possible)}"
        )
    return name


def write_bytes(content: bytes, form: Form) -> None:
    """Write a file where it was asked for.

    Raises:
        ArgumentError: It cannot be written.
    """
    if form.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        write_named(form.output, content)
    except OSError as exc:
        raise ArgumentError(
            f"cannot write {form.output}: {(exc.strerror or str(exc)).lower()}",
            remedy="name a file in a folder that exists, with --output",
        ) from exc


def write_records(
    form: Form,
    value: object,
    kinds: Sequence[tuple[str, Kind]],
    rows: Sequence[Sequence[object]],
) -> bool:
    """Write an answer for programs.

    Args:
        form: The form.
        value: What JSON shows.
        kinds: Names and kinds of the columns of CSV and Parquet.
        rows: One value for each column.

    Returns:
        False for a form that is for people: nothing was written.
    """
    if form.name == JSON:
        write_json(value)
    elif form.name == CSV:
        write_csv([name for name, _ in kinds], rows)
    elif form.name == PARQUET:
        from controller.cli.parquet_file import parquet_bytes

        write_bytes(parquet_bytes(kinds, rows), form)
    else:
        return False
    return True


def _check_installed(form: str) -> None:
    library, extra = NEEDED[form]
    if importlib.util.find_spec(library) is None:
        raise ArgumentError(
            f"{library} is not installed here, and --format {form} needs it",
            remedy=f"pip install 'edgefleet[{extra}]'",
        )


def _either(words: Collection[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"
