"""`fleet telemetry save`, `run`, `saved` and `forget`: queries that all operators share."""

from __future__ import annotations

import getpass
from dataclasses import replace
from shlex import quote
from typing import Annotated, Any

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.asking import EveryOption, SparkOption, WatchOption, answer, every_s_of
from controller.cli.connecting import connect
from controller.cli.formats import (
    ALL,
    CsvOption,
    FormatOption,
    OutputOption,
    checked_format,
    chosen_form,
)
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.questions import (
    SELECTOR,
    SINCE,
    STAT,
    STEP,
    UNTIL,
    ByOption,
    MetricArgument,
    OneModelOption,
    SelectorOption,
    SinceOption,
    StatOption,
    StepOption,
    UntilOption,
    WhereOption,
    checked,
    conditions,
    listed,
    other_conditions,
    shown_time,
    time_asked,
)
from controller.query_schemas import SavedQueryRequest, TelemetryQuestion
from wire.codec import convert
from wire.console.output import remark, write
from wire.console.text import local_time

UNKNOWN_USER = ""
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the saved query: a-z 0-9 . _ -.",
        autocompletion=completion.saved_queries,
    ),
]


def telemetry_save(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    name: NameArgument,
    metric: MetricArgument,
    stat: StatOption = "",
    by: ByOption = None,
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: SelectorOption = "",
    since: SinceOption = "1h",
    until: UntilOption = "",
    step: StepOption = "",
    form: FormatOption = "",
    replace_other: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of another one of that name.")
    ] = False,
) -> None:
    """Keep a query under a name, for all who use this controller.

    Examples:
        fleet telemetry save slow inference_latency_ms --stat p95 --by site
        fleet telemetry save heat temperature_c --step 5m --since 1d --format plot
    """
    question = TelemetryQuestion(
        metric=metric, stat=stat, by=listed(by), where=conditions(where, model), selector=selector,
        since=time_asked(since, "--since"), until=until and time_asked(until, "--until"), step=step,
    )  # fmt: skip
    checked(question)  # refuses what makes no sense, in the words of the options
    kept = _with_format(question, form)
    request = SavedQueryRequest(query=kept, saved_by=_user())
    with connect(context) as api:
        saved = api.saved_queries.save(name, request, replace=replace_other)
    write(f"saved {saved.name}")
    for doubt in saved.doubts:
        remark(f"warning: {doubt}")


def telemetry_run(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    name: NameArgument,
    stat: Annotated[str | None, STAT] = None,
    by: ByOption = None,
    where: WhereOption = None,
    model: OneModelOption = None,
    selector: Annotated[str | None, SELECTOR] = None,
    since: Annotated[str | None, SINCE] = None,
    until: Annotated[str | None, UNTIL] = None,
    step: Annotated[str | None, STEP] = None,
    form: FormatOption = "",
    output: OutputOption = None,
    spark: SparkOption = None,
    watch: WatchOption = False,
    every: EveryOption = "",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Ask a saved query.

    What is given here takes the place of what was saved; an empty text takes it away.

    Examples:
        fleet telemetry run slow
        fleet telemetry run slow --since 1d --selector site=berlin
        fleet telemetry run heat --watch
    """
    every_s = every_s_of(every, watch=watch)
    with connect(context) as api:
        kept = api.saved_queries.get(name).query
    given: dict[str, Any] = {
        "stat": stat, "by": None if by is None else listed(by), "selector": selector,
        "since": since, "until": until, "step": step,
    }  # fmt: skip
    changed = {option: text for option, text in given.items() if text is not None}
    question = replace(kept, **changed, where=other_conditions(kept.where, where, model))
    saved_form = "" if form or as_json or as_csv else kept.format
    chosen = chosen_form(form or saved_form, as_json=as_json, as_csv=as_csv, output=output)
    answer(context, question, chosen, spark=spark, every_s=every_s)


def telemetry_saved(
    context: typer.Context,
    sort: Annotated[str, typer.Option("--sort", metavar="KEY", help="By name or saved.")] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the saved queries, and who saved them.

    SAVED BY is the name of the API token. People share that of the controller's directory, which
    the audit log calls home: of it, it is the user of the machine on which `fleet` ran.

    Examples:
        fleet telemetry saved
    """
    with connect(context) as api:
        found = take(api.saved_queries.list(sort=sort, reverse=reverse), limit, cursor)
    if as_json:
        write_json(found)
        return
    saved = time_heading("SAVED", (s.saved_at_s for s in found))
    write_list(
        ("NAME", "QUERY", "SAVED BY", saved),
        [(s.name, _words(s.query), s.saved_by, local_time(s.saved_at_s)) for s in found],
        none="no queries are saved; `fleet telemetry save` keeps one",
        minor=(saved, "SAVED BY"),
    )


def telemetry_forget(context: typer.Context, name: NameArgument) -> None:
    """Take a saved query away.

    Examples:
        fleet telemetry forget slow
    """
    with connect(context) as api:
        api.saved_queries.forget(name)
    write(f"{name} is no longer saved")


def _with_format(question: TelemetryQuestion, form: str) -> TelemetryQuestion:
    return convert({**vars(question), "format": checked_format(form, ALL)}, TelemetryQuestion)


def _words(question: TelemetryQuestion) -> str:
    """Return a query as it is typed into a shell."""
    options = [
        ("--stat", question.stat), ("--by", question.by), *(("--where", w) for w in question.where),
        ("--selector", question.selector),
        ("--since", shown_time(question.since) if question.since != "1h" else ""),
        ("--until", shown_time(question.until)), ("--step", question.step),
        ("--format", question.format),
    ]  # fmt: skip
    return " ".join([question.metric, *(f"{name} {quote(text)}" for name, text in options if text)])


def _user() -> str:
    """Return who types this, as the system says; empty if it does not know."""
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):
        return UNKNOWN_USER
