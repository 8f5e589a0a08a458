"""`fleet rollout check`: which devices can take a release, as counts, then as names by reason."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, selected
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.output import write_json
from controller.cli.releases import ReleaseArgument
from controller.domain.wording import counted
from controller.rollout_plan_schemas import PreflightReport
from wire.console.output import write, write_fields, write_lines
from wire.console.text import plain_text

MAX_NAMED = 100_000
SelectorOption = Annotated[
    str,
    typer.Option(
        help="The devices of the rollout. The default is all devices.",
        metavar="SELECTOR",
        autocompletion=completion.selectors,
    ),
]


def rollout_check(
    context: typer.Context,
    release: ReleaseArgument,
    selector: SelectorOption = "",
    limit: Annotated[
        int,
        typer.Option(
            help="Name at most so many devices for each reason.",
            metavar="N",
            min=1,
            max=MAX_NAMED,
        ),
    ] = 20,
    windows: Annotated[
        bool,
        typer.Option("--windows", help="The rollout is to have --window: old agents know none."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show which devices can take a release, before anything is sent.

    This asks what the devices have said of themselves: processor, memory, storage, runtimes and
    what they run. The exit status is 1 when a device would refuse the release, or none can take it.

    Examples:
        fleet rollout check detector:1.1.0
        fleet rollout check detector:1.1.0 --selector site=berlin
    """
    with connect(context) as api:
        report = api.releases.preflight(release, selector=selector, limit=limit, windowed=windows)
    if as_json:
        write_json(report)
    else:
        show_preflight(report)
    return EXIT_NO if report.refuses or not report.takes + report.unknown else 0


def show_preflight(report: PreflightReport) -> None:
    """Write a preflight's answer.

    Args:
        report: What the controller said.
    """
    fields: list[tuple[str, object]] = [
        ("release", report.release),
        ("devices", selected(report.selector)),
        ("will take it", f"{report.takes}{_of_these(report)}"),
        ("will refuse", report.refuses),
    ]
    if report.unknown:
        fields.append(("unknown", f"{report.unknown}, not greeted since enrolment"))
    if report.shut_out:
        fields.append(("shut out", f"{report.shut_out}, quarantined or decommissioned"))
    write_fields(fields)
    if not report.takes + report.refuses + report.unknown:
        write_lines(["", "no enrolled device matches"])
    write_refusing(report)
    if report.unknown_devices:
        write()
        write_lines([f"{counted(report.unknown)} unknown:"])
        write_lines([names_line(report.unknown_devices, report.unknown)])


def write_refusing(report: PreflightReport) -> None:
    """Write which devices would refuse a release, and why.

    Args:
        report: What the controller said.
    """
    for part in report.refusing:
        verb = "refuses" if part.count == 1 else "refuse"
        write()
        write_lines([f"{counted(part.count)} {verb}: {plain_text(part.reason)}"])
        write_lines([names_line(part.devices, part.count)])
    if others := report.refuses - sum(part.count for part in report.refusing):
        write()
        write_lines([f"{others} more refuse, for other reasons"])


def names_line(names: list[str], total: int) -> str:
    """Return a line with the first of some devices, and how many more there are."""
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"  {', '.join(map(plain_text, names))}{more}"


def _of_these(report: PreflightReport) -> str:
    parts = []
    if report.runs:
        parts.append(f"{report.runs} run{'s' if report.runs == 1 else ''} it already")
    if report.offline:
        parts.append(f"{report.offline} {'is' if report.offline == 1 else 'are'} offline now")
    return f", of which {' and '.join(parts)}" if parts else ""
