"""What `fleet build` shows: its progress, a plan and a result.

Rules:
- A person sees in one line what is going on. A pipe or a log gets a line a minute, so that a build
  of a quarter of an hour is seen to go on.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from controller.cli.output import write_plain_json
from wire.console.output import remark, write, write_fields, write_table
from wire.console.sizes import bytes_text

if TYPE_CHECKING:
    from packager.plan.values import Plan
    from packager.request import BuildRequest
    from packager.result import BuildResult

LOGGED_S: Final = 60.0


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what is going on, while the `with` block lasts.

    Yields:
        What takes a line for each step.
    """
    if not sys.stderr.isatty():
        yield once_a_minute(time.monotonic)
        return
    from rich.console import Console

    with Console(stderr=True).status("building ...") as status:
        yield status.update


def once_a_minute(now_s: Callable[[], float]) -> Callable[[str], None]:
    """Return what takes a line for each step and shows one a minute.

    Args:
        now_s: A clock that only goes forward.
    """
    told_s = now_s()

    def tell(line: str) -> None:
        nonlocal told_s
        if now_s() - told_s >= LOGGED_S:
            told_s = now_s()
            remark(line)

    return tell


def show_plan(request: BuildRequest, plan: Plan, *, json: bool) -> None:
    """Show what would be built, and what is impossible.

    Args:
        request: What was asked for.
        plan: The plan.
        json: Whether for a program.
    """
    from packager.report.tables import (
        IMPOSSIBLE_COLUMNS,
        STEP_COLUMNS,
        VERDICT_COLUMNS,
        impossible_rows,
        plan_rows,
        step_rows,
    )

    if json:
        write_plain_json(plan)
        return
    for line in plan.interface:
        remark(noted(line))
    write_table(VERDICT_COLUMNS, plan_rows(plan, request.profiles))
    write()
    write_table(IMPOSSIBLE_COLUMNS, impossible_rows(plan.impossible, request.profiles))
    write()
    write_table(STEP_COLUMNS, step_rows(plan))


def show_result(request: BuildRequest, result: BuildResult, *, json: bool) -> None:
    """Show what was built, and what every profile gets and why.

    Args:
        request: What was asked for.
        result: The result.
        json: Whether for a program.
    """
    from packager.report import further, shapes
    from packager.report.tables import (
        FIGURES_MINOR,
        VERDICT_COLUMNS,
        figure_columns,
        figure_rows,
        verdict_rows,
    )

    if json:
        write_plain_json(result)
        return
    if result.metric_reason:
        write(f"metric {result.metric}, chosen by auto: {result.metric_reason}")
    measured = any(candidate.performance for candidate in result.candidates)
    place = f"latency measured on {result.machine}" if measured else "no latency could be measured"
    write(f"{result.samples} evaluation samples; {place}")
    columns = figure_columns(result.metric)
    write_table(columns, figure_rows(result.candidates), minor=FIGURES_MINOR)
    write()
    if rows := further.candidate_rows(result.candidates):
        write_table(further.COLUMNS, rows, minor=further.MINOR)
        write()
    if rows := shapes.candidate_rows(result.candidates):
        write_table(shapes.COLUMNS, rows, minor=shapes.MINOR)
        write()
    write_table(VERDICT_COLUMNS, verdict_rows(result, request.profiles))
    for note in result.notes:
        remark(noted(note))
    write()
    states = Counter(step.state for step in result.steps)
    lost = states["failed"] + states["skipped"]
    write_fields(
        (
            ("package", result.package),
            ("name", f"{result.name}:{result.version}"),
            ("digest", result.digest),
            ("size", bytes_text(result.size_bytes)),
            ("signed", result.signed),
            (
                "steps",
                f"{states['done']} run, {states['cached']} from the cache"
                + (f", {lost} failed or skipped" if lost else ""),
            ),
            ("impossible", f"{len(result.impossible)}; --dry-run and --report say why"),
        )
    )


def noted(line: str) -> str:
    """Return a remark on a build; a warning says itself that it is one."""
    return line if line.startswith("warning: ") else f"note: {line}"
