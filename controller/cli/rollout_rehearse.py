"""`fleet rollout rehearse`: what a rollout would have done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from controller.cli.arguments import JsonOption, parse_percent, selected
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.output import write_json
from controller.client.rollout_files import read_file, request_of
from controller.domain.rehearsal.results import RehearsedCourse, Spread
from controller.domain.wording import counted
from controller.rehearsal_schemas import MAX_RUNS, MAX_SEED, Rehearsal, RehearsalRequest
from wire.console.output import remark, write, write_fields, write_lines, write_table
from wire.console.progress import about_text
from wire.console.text import plain_text

TIMEOUT_S: Final = 600.0
"""The controller computes for a minute or so; a busy one takes longer."""


def rollout_rehearse(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            help="TOML file with the rollout, as `fleet rollout create` takes it.",
            metavar="FILE",
        ),
    ],
    runs: Annotated[
        int, typer.Option(min=1, max=MAX_RUNS, help="How often it is run.", metavar="N")
    ] = 20,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_SEED,
            help="What decides all chance: the same, the same answer.",
            metavar="N",
        ),
    ] = 1,
    harm: Annotated[
        list[str] | None,
        typer.Option(
            help="What a bad release does to what a gate asks, such as "
            "'p95(inference_latency_ms) +10%'; may be repeated.",
            metavar="HARM",
        ),
    ] = None,
    failing: Annotated[
        str, typer.Option(help="What share of its installs fails.", metavar="PERCENT")
    ] = "0%",
    as_json: JsonOption = False,
) -> None:
    """Run a rollout in virtual time, by what its devices have shown. Nothing begins.

    The controller plays the last 7 days of the devices again: when they were heard, what they
    measured, and how earlier installs of the model ended. It decides as a real rollout does. So you
    see how long the stages take, and whether the limits and the gates would stop a bad release.

    Examples:
        fleet rollout rehearse -f rollout.toml
        fleet rollout rehearse -f rollout.toml --harm 'p95(inference_latency_ms) +10%'
        fleet rollout rehearse -f rollout.toml --failing 20% --runs 50
    """  # noqa: DOC501 - is the help text
    body = request_of(read_file(file))
    if not body.release:
        raise ArgumentError("no release is named", remedy='write release = "NAME:VERSION"')
    request = RehearsalRequest(
        rollout=body,
        runs=runs,
        seed=seed,
        harm=list(harm or []),
        failing_percent=parse_percent(failing, option="--failing"),
    )
    with connect(context, timeout_s=TIMEOUT_S) as api:
        found = api.rollouts.rehearse(request)
    if as_json:
        write_json(found)
    else:
        write_rehearsal(found)


def write_rehearsal(found: Rehearsal) -> None:
    """Write what a rollout would have done.

    Args:
        found: What the controller said.
    """
    known = found.history
    heard = f"{known.heard} of {counted(found.devices)}, up to {known.hours} h"
    ends = f"{known.failed_percent:.3g} % failed, {known.refused_percent:.3g} % refused, "
    write_fields(
        [
            ("release", found.release),
            ("devices", f"{found.devices} of {selected(found.selector)}"),
            ("runs", f"{found.runs}, seed {found.seed}"),
            ("history", heard),
            *(
                [("borrowed", f"{counted(known.borrowed)} without history")]
                if known.borrowed
                else []
            ),
            (
                "earlier installs",
                f"{known.installs}: half took up to {about_text(known.median_install_s)}",
            ),
            (
                "earlier outcomes",
                f"{known.outcomes}: {ends}{known.timed_out_percent:.3g} % timed out",
            ),
        ]
    )
    _write_course("a release like the one that serves", found.plain)
    if found.harmed is not None:
        _write_course("with the planted harm", found.harmed)
    for note in found.notes:
        remark(f"note: {note}")
    remark("nothing was begun: this is a rehearsal; docs/rollouts.md says what it assumes")


def _write_course(title: str, course: RehearsedCourse) -> None:
    write()
    unfinished = f", {course.unfinished} unfinished after 60 days" if course.unfinished else ""
    write_lines([
        f"{title}: {course.succeeded} of {course.runs} runs succeeded, {course.halted} halted"
        + unfinished
    ])  # fmt: skip
    for reason in course.waits:
        write_lines([f"  unfinished: {plain_text(reason)}"])
    rows = [
        *((f"stage {number}", *_times(took)) for number, took in enumerate(course.stages_s, 1)),
        ("all stages", *_times(course.takes_s)),
    ]
    write()
    write_table(("TAKES", "RUNS", "MEDIAN", "9 OF 10"), rows)
    if course.gates:
        write()
        write_table(
            ("GATE COULD TELL", "RUNS", "AFTER", "9 OF 10", "DEVICES"),
            [
                (plain_text(one.gate), *_times(one.after_s), _count(one.devices))
                for one in course.gates
            ],
        )
    if course.halts:
        write()
        write_table(
            ("HALTED BY", "RUNS", "AFTER", "9 OF 10", "STARTED", "WITH IT", "LEFT"),
            [
                (
                    plain_text(one.rule),
                    *_times(one.after_s),
                    *map(_count, (one.started, one.with_release, one.left)),
                )
                for one in course.halts
            ],
        )


def _times(took: Spread | None) -> tuple[str, str, str]:
    if took is None:
        return "0", "-", "-"
    return str(took.runs), about_text(took.median), about_text(took.slow)


def _count(devices: Spread | None) -> str:
    """Return a number of devices: the median, and in brackets what nine of ten do not exceed."""
    if devices is None:
        return "-"
    return f"{devices.median:g} ({devices.slow:g})"
