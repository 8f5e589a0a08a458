"""The one form of all benchmarks: rows of figures beside a peer's, and the machine.

`python benchmarks/NAME.py [--quick] [--json] [--check]`

Rules:
- Ours and the peer's are measured alternately in one run; what is printed is the median of the
  rounds' ratios with their spread, not the ratio of the two medians: what disturbs a machine for
  some seconds disturbs both of a round.
- A figure without an aim is only reported. `--check` exits 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    name: str
    value: float | None
    """None where it was not measured; `spread` says why."""

    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    spread: str = ""
    """Least and greatest of the rounds' ratios, or of the values where there is no peer."""

    aim: str = ""
    met: bool | None = None


def against(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    unit: str,
    peer: str,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """Return the row of a figure measured in alternating rounds beside a peer's.

    Args:
        name: What was measured.
        ours: One value per round.
        theirs: The peer's value of the same rounds.
        unit: Of both.
        peer: Who that is.
        at_most: Aim for the ratio ours / theirs.
        at_least: Aim for the ratio ours / theirs.

    Returns:
        The row.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    aim, met = "", None
    if at_most is not None:
        aim, met = f"ratio <= {at_most:g}", ratio <= at_most
    elif at_least is not None:
        aim, met = f"ratio >= {at_least:g}", ratio >= at_least
    return Row(
        name=name,
        value=statistics.median(ours),
        unit=unit,
        peer=peer,
        peer_value=statistics.median(theirs),
        ratio=ratio,
        spread=f"{min(ratios):.3g} to {max(ratios):.3g}" if len(ratios) > 1 else "one round",
        aim=aim,
        met=met,
    )


def alone(name: str, values: Sequence[float], *, unit: str, at_most: float | None = None) -> Row:
    """Return the row of a figure without a peer: the median of some readings.

    Args:
        name: What was measured.
        values: The readings.
        unit: Of the readings.
        at_most: Aim for the median.

    Returns:
        The row.
    """
    value = statistics.median(values)
    return Row(
        name=name,
        value=value,
        unit=unit,
        spread=f"{min(values):.3g} to {max(values):.3g}",
        aim="" if at_most is None else f"<= {at_most:g} {unit}",
        met=None if at_most is None else value <= at_most,
    )


def not_measured(name: str, why: str, *, peer: str = "") -> Row:
    """Return the row of a figure that this machine cannot measure.

    Args:
        name: What would have been measured.
        why: What is missing.
        peer: Beside whom.

    Returns:
        The row.
    """
    return Row(name=name, value=None, unit="", peer=peer, spread=f"not run: {why}")


def shown(value: float | None, form: str) -> str:
    """Return a figure as text; empty where there is none.

    Args:
        value: The figure.
        form: How, as `format` has it.

    Returns:
        The text.
    """
    return "" if value is None else format(value, form)


def machine() -> str:
    """Return the machine that the figures hold for."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = f"{model}, {line.split(':', 1)[1].strip()}"
            break
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main(title: str, measure: Callable[[bool], list[Row]], argv: list[str] | None = None) -> int:
    """Run a benchmark from the command line.

    Args:
        title: What it shows.
        measure: Takes whether to be quick, returns the rows.
        argv: The command line, or None for this process's own.

    Returns:
        The exit status: 1 when `--check` was given and an aim was missed.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="end within a minute; fewer rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    arguments = parser.parse_args(argv)
    rows = measure(arguments.quick)
    if arguments.json:
        document = {"title": title, "machine": machine(), "quick": arguments.quick}
        print(json.dumps(document | {"rows": [asdict(row) for row in rows]}, indent=2))
    else:
        _print_table(title, rows, quick=arguments.quick)
    missed = any(row.met is False for row in rows)
    return 1 if arguments.check and missed else 0


def _print_table(title: str, rows: Sequence[Row], *, quick: bool) -> None:
    table = Table(title=title + (" (quick)" if quick else ""), caption=machine())
    for column in ("figure", "value", "unit", "peer", "peer's", "ratio", "spread", "aim", ""):
        right = column in {"value", "peer's", "ratio"}
        table.add_column(column, justify="right" if right else "left")
    for row in rows:
        table.add_row(
            row.name,
            shown(row.value, ".4g"),
            row.unit,
            row.peer,
            shown(row.peer_value, ".4g"),
            shown(row.ratio, ".3f"),
            row.spread,
            row.aim,
            {True: "met", False: "missed", None: ""}[row.met],
        )
    Console(width=max(140, Console().width) if not sys.stdout.isatty() else None).print(table)
