"""Asks a query of the telemetry once, or again and again, and shows each answer."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from controller.cli.answers import FOR_PEOPLE, Answer, Choose, ask, page, show, wants_trends
from controller.cli.arguments import parse_duration
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.formats import NEEDED, Form
from controller.cli.repeating import draw, repeated
from controller.query_schemas import TelemetryQuestion

SparkOption = Annotated[
    bool | None,
    typer.Option(
        "--spark/--no-spark",
        help="A column that shows how the values went; a table on a terminal has it.",
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Ask again and again, until Ctrl-C.")]
EveryOption = Annotated[
    str, typer.Option(metavar="TIME", help="With --watch: how often; the default is 10s.")
]

EVERY: Final = "10s"
"""As often as devices report, if nothing else is set."""

LEAST_EVERY_S: Final = 1.0


def every_s_of(every: str, *, watch: bool) -> float | None:
    """Return the time between two questions of `--watch`; None asks once.

    Args:
        every: Of `--every`.
        watch: Whether there was `--watch`.

    Raises:
        ArgumentError: It is no duration, or too short.
    """
    if not watch:
        if every:
            raise ArgumentError("--every is for --watch", remedy="add --watch")
        return None
    every_s = parse_duration(every or EVERY, option="--every")
    if every_s < LEAST_EVERY_S:
        raise ArgumentError(f"--every: {every!r} is too often", remedy="write 1s or longer")
    return every_s


def answer(
    context: typer.Context,
    question: TelemetryQuestion,
    form: Form,
    *,
    spark: bool | None = None,
    every_s: float | None = None,
    choose: Choose | None = None,
) -> None:
    """Ask, and show the answer.

    Args:
        context: Says where the controller is.
        question: The query.
        form: How the answer is shown.
        spark: Whether a table shows how values went; None leaves it to the output.
        every_s: Time between two questions; None asks once.
        choose: Takes some of the rows; None takes all.

    Raises:
        ArgumentError: A value makes no sense, or a file cannot be written.
        FaultError: The controller refuses the query.
        UnreachableError: It does not answer.
    """
    if every_s is not None and form.name in NEEDED and form.output is None:
        raise ArgumentError(
            f"--watch would write one file of {form.name} behind the other",
            remedy="add --output FILE, which is replaced each time",
        )
    wanted = wants_trends(spark, form)
    with connect(context) as api:

        def fetch() -> Answer:
            return ask(api, question, spark=wanted, choose=choose)

        if every_s is None:
            show(fetch(), form)
        elif form.name in FOR_PEOPLE:
            draw(page(found, form) for found in repeated(fetch, every_s))
        else:
            for found in repeated(fetch, every_s):
                show(found, form)
                sys.stdout.flush()
