"""Queries of the telemetry as people type them: options of several commands, and what they mean.

Rules:
- A time is a duration ago, or a moment in ISO 8601; without a zone it is the user's, as tables show
  it. The API gets it as seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

import typer

from controller.cli import completion
from controller.cli.arguments import parse_duration, parse_labels
from controller.cli.errors import ArgumentError
from controller.query_schemas import TelemetryQuestion
from wire.console.text import local_time
from wire.durations import format_duration, parse_duration_s
from wire.errors import WireFormatError

STAT: Final = typer.Option(
    metavar="NAMES",
    help="Statistics: count,total,mean,min,max,rate, and any from p0 to p100 of histograms, such "
    "as p50 or p99.9. The default depends on the kind of the metric.",
)
StatOption = Annotated[str, STAT]
SELECTOR: Final = typer.Option(
    metavar="EXPRESSION",
    help="Count only devices that match it: site=berlin.",
    autocompletion=completion.selectors,
)
SelectorOption = Annotated[str, SELECTOR]
UNIT: Final = typer.Option(
    metavar="NAME",
    help="Take all devices with the same value of this label, such as site, as one observation.",
)
UnitOption = Annotated[str, UNIT]
SINCE: Final = typer.Option(
    help="How far back, such as 30m or 7d, or a time: 2026-01-31T12:00.", metavar="TIME"
)
SinceOption = Annotated[str, SINCE]
UNTIL: Final = typer.Option(metavar="TIME", help="Count only what is older than this, such as 10m.")
UntilOption = Annotated[str, UNTIL]
MetricArgument = Annotated[
    str,
    typer.Argument(
        metavar="METRIC",
        help="Such as inference_latency_ms: see `fleet telemetry metrics`.",
        autocompletion=completion.metrics,
    ),
]
BY: Final = typer.Option(
    metavar="NAMES",
    help="One row for each value of these: device, minute, attributes of the metric as "
    "variant, labels of devices, profile, arch, agent_version.",
)
ByOption = Annotated[list[str] | None, BY]
WhereOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Count only these.")
]
OneModelOption = Annotated[
    str | None, typer.Option(help="Count only this model; the default is all.", metavar="NAME")
]
STEP: Final = typer.Option(help="One row for each time of this length, such as 5m.", metavar="TIME")
StepOption = Annotated[str, STEP]

MODEL: Final = "model="
TIMES: Final = "write a time ago, such as 90s, 15m, 1h30m or 2d, or a moment: 2026-01-31T12:00"
_AGO = re.compile(r"[0-9.]+[a-z]")
_EPOCH_S = re.compile(r"[0-9]{9,11}(\.[0-9]{1,6})?")


def conditions(where: Sequence[str] | None, model: str | None) -> list[str]:
    """Return the conditions of `--where` and `--model`."""
    return [*(where or ()), *([f"{MODEL}{model}"] if model is not None else ())]


def other_conditions(
    saved: Sequence[str], where: Sequence[str] | None, model: str | None
) -> list[str]:
    """Return conditions after options were given anew.

    Args:
        saved: As they are kept.
        where: All but the model, in their place; None keeps them.
        model: The model, in the place of that before; None keeps it.

    Returns:
        The conditions.
    """
    kept = [each for each in saved if where is None and not each.startswith(MODEL)]
    models = [each for each in saved if model is None and each.startswith(MODEL)]
    return [*kept, *models, *conditions(where, model)]


def checked(question: TelemetryQuestion) -> TelemetryQuestion:
    """Return a question with times as the API reads them.

    Raises:
        ArgumentError: A value makes no sense.
    """
    check_conditions(question.where)
    step = question.step and format_duration(parse_duration(question.step, option="--step"))
    since, until = times_asked(question.since, question.until)
    return replace(question, since=since, until=until, step=step)


def check_conditions(where: Sequence[str]) -> None:
    """Refuse conditions that are none.

    Raises:
        ArgumentError: One is not `key=value`.
    """
    for pair in where:
        parse_labels([pair])  # several values of one attribute are alternatives


def times_asked(since: str, until: str) -> tuple[str, str]:
    """Return the ends of a time as the API reads them.

    Raises:
        ArgumentError: One is no time.
    """
    return time_asked(since, "--since"), until and time_asked(until, "--until")


def time_asked(text: str, option: str) -> str:
    """Return a time as the API reads it.

    Args:
        text: A duration, an ISO 8601 time, or seconds since the epoch.
        option: The option that it belongs to, for the error.

    Returns:
        The duration, or seconds since the epoch.

    Raises:
        ArgumentError: It is none of them.
    """
    text = text.strip()
    if _EPOCH_S.fullmatch(text):
        return text
    if "-" in text[1:]:
        try:
            return f"{datetime.fromisoformat(text).timestamp():.0f}"
        except (ValueError, OverflowError) as exc:
            raise ArgumentError(f"{option}: {text[:40]!r} is not a time", remedy=TIMES) from exc
    try:
        parse_duration_s(text)
    except WireFormatError as exc:
        fault = exc.message.replace("is not a duration", "is not a time")
        raise ArgumentError(f"{option}: {fault}", remedy=TIMES) from exc
    return format_duration(parse_duration(text, option=option))


def span_s(question: TelemetryQuestion, now_s: float) -> tuple[float, float]:
    """Return the time range of a query, as seconds since the epoch."""
    since_s = time_s(question.since, "--since", now_s)
    return since_s, time_s(question.until, "--until", now_s) if question.until else now_s


def time_s(text: str, option: str, now_s: float) -> float:
    """Return a time as seconds since the epoch.

    Args:
        text: A duration, an ISO 8601 time, or seconds since the epoch.
        option: The option that it belongs to, for the error.
        now_s: Wall time.

    Raises:
        ArgumentError: It is none of them.
    """
    asked = time_asked(text, option)
    return float(asked) if _EPOCH_S.fullmatch(asked) else now_s - parse_duration_s(asked)


def shown_time(text: str) -> str:
    """Return a time of a query as a person writes it, who need not know the epoch."""
    return local_time(float(text)).replace(" ", "T") if _EPOCH_S.fullmatch(text) else text


def listed(words: Sequence[str] | None) -> str:
    """Return lists of words that an option gave, once or several times, as one list."""
    return ",".join(filter(None, words or ()))


def words_of(text: str) -> list[str]:
    """Return the words between commas, as the API reads them."""
    return [word.strip() for word in text.split(",")] if text.strip() else []


def title_of(question: TelemetryQuestion, statistics: Sequence[str]) -> str:
    """Return a query in words.

    Args:
        question: The query.
        statistics: Those that are shown.

    Returns:
        Such as `p95 of inference_latency_ms by variant, the last 1h`.
    """
    by = f" by {', '.join(words_of(question.by))}" if question.by else ""
    part = part_text(question.where, question.selector, question.since, question.until)
    step = f", step {question.step}" if question.step else ""
    return f"{', '.join(statistics)} of {question.metric}{by}{part}{step}"


def part_text(where: Sequence[str], selector: str, since: str, until: str) -> str:
    """Return which part of the telemetry is asked for, in words.

    Returns:
        Such as ` where site=berlin, the last 1h`.
    """
    only = [*where, *([selector] if selector else [])]
    conditions_text = f" where {', '.join(only)}" if only else ""
    since, until = map(shown_time, (since, until))
    time = f"the last {since}" if _AGO.match(since) else f"since {since}"
    until = f", until {until}{' ago' if _AGO.match(until) else ''}" if until else ""
    return f"{conditions_text}, {time}{until}"
