"""`fleet telemetry export`: a copy of the telemetry as Parquet files.

Rules:
- Whole days of UTC are written, each into a file of its own, so the same command again brings each
  day up to date. Rows of whole days are written by the month.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar, cast

import typer

from controller.cli.arguments import MAX_DURATION_S, JsonOption
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.lists import write_list
from controller.cli.output import write_json
from controller.cli.parquet_files import PART, NewFile, check_library, new_file
from controller.cli.questions import time_s
from controller.client.errors import AnswerError, UnreachableError
from controller.client.fleet import Fleet
from telemetry.limits import is_name
from telemetry.server.export.lines import (
    MAX_LINE_BYTES,
    EndLine,
    EventsLine,
    Line,
    MetricLine,
    RowsLine,
)
from wire.clock import SystemClock
from wire.codec import from_json
from wire.console.output import remark

DAY_S: Final = 86_400
MINUTE: Final = "minute"
DAY: Final = "day"
FOLDERS: Final = {MINUTE: "", "hour": "hours", DAY: "days"}
"""Where the rows of each level are, below the directory."""

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_ROUTE: Final = "/v1/telemetry/export"
T = TypeVar("T")


def telemetry_export(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the files go; made if it is missing.")
    ],
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="From the day of this time on: 7d, or 2026-01-31."),
    ] = "1d",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="Until the day of this time; the default is today.")
    ] = "",
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this metric; may be given more than once."),
    ] = None,
    level: Annotated[
        str, typer.Option(metavar="NAME", help="How long the rows are: minute, hour or day.")
    ] = MINUTE,
    events: Annotated[bool, typer.Option("--events", help="Events too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy telemetry into Parquet files, one for each metric and day, for DuckDB or Spark.

    Days are whole days of UTC. A day that was copied before is brought up to date; what the
    controller has deleted meanwhile stays in the file.

    Hours and days of what was measured are kept longer than minutes. They have folders of their
    own, and rows of days have a file for each month.

    Examples:
        fleet telemetry export lake --since 7d --events
        fleet telemetry export lake --metric inference_latency_ms --since 0
        fleet telemetry export lake --level hour --since 90d
    """
    check_library()
    _check_level(level)
    days = _days(since, until)
    spans = _months(days) if level == DAY else [_day_span(at_s) for at_s in days]
    with connect(context) as api:
        known = [found.name for found in api.telemetry.metrics()]
        names = sorted(set(metric or known))
        _check_names(names, known)
        written = [
            done for name in names for done in _measurements(api, directory, name, spans, level)
        ]
        if events:
            written += _events(api, directory, [_day_span(at_s) for at_s in days])
    shown = [(str(done.path), done.rows) for done in written]
    kept = [str(done.path) for done in written if done.kept]
    if as_json:
        write_json({
            "files": [{"path": path, "rows": rows} for path, rows in shown], "kept": kept,
        })  # fmt: skip
        return
    write_list(("FILE", "ROWS"), shown, none="no telemetry of that time: no file was written")
    if kept:
        number = sum(done.kept for done in written)
        remark(f"kept {number} rows that the controller no longer has, in {', '.join(kept)}")


class Span(NamedTuple):
    """A time that has a file of its own."""

    name: str
    """Of its folder."""

    since_s: int
    until_s: int


class Written(NamedTuple):
    """A file that was written."""

    path: Path
    rows: int
    kept: int
    """How many of them the controller no longer has."""


def _measurements(
    api: Fleet, directory: Path, name: str, spans: Sequence[Span], level: str
) -> Iterator[Written]:
    for span in spans:
        found = _answer(api, "measurements", span, {"metric": name, "level": level})
        first = _expect(next(found, None), MetricLine)
        if first.level != level:
            raise AnswerError(
                f"the controller has no rows of the level {level!r}",
                remedy="use --level minute, or a controller of this version",
            )
        place = directory / FOLDERS[level] / f"metric={name}" / span.name / PART
        yield from _written(place, first, found)


def _events(api: Fleet, directory: Path, spans: Sequence[Span]) -> Iterator[Written]:
    for span in spans:
        place = directory / "events" / span.name / PART
        yield from _written(place, None, _answer(api, "events", span, {}))


def _written(path: Path, first: MetricLine | None, found: Iterator[Line]) -> Iterator[Written]:
    """Write what follows; a day without rows gets no file.

    Raises:
        ArgumentError: The file cannot be written.
        UnreachableError: The answer is not whole.
    """
    line = next(found, None)
    if isinstance(line, EndLine):
        return
    try:
        with new_file(path, first) as file:
            _copy(file, line, found)
            yield Written(path, file.finish(), file.kept)
    except OSError as exc:
        raise ArgumentError(
            f"cannot write {path}: {(exc.strerror or str(exc)).lower()}",
            remedy="name a directory in which there is room and which you may write",
        ) from exc


def _copy(file: NewFile, line: Line | None, found: Iterator[Line]) -> None:
    """Write all rows.

    Raises:
        UnreachableError: The answer is not whole.
        AnswerError: It has something else.
    """
    while isinstance(line, RowsLine | EventsLine):
        file.write(line)
        line = next(found, None)
    if line is None:
        raise UnreachableError(
            "the controller ended before all of the telemetry came", remedy="try again"
        )
    end = _expect(line, EndLine)
    if end.rows != file.came:
        raise AnswerError(f"{file.came} rows came in place of {end.rows}", remedy="try again")


def _answer(api: Fleet, what: str, span: Span, more: Mapping[str, str]) -> Iterator[Line]:
    asked = {"since_s": str(span.since_s), "until_s": str(span.until_s), **more}
    for line in api.lines(f"{_ROUTE}/{what}", asked, MAX_LINE_BYTES):
        yield from_json(line, cast("type[Line]", Line), limit_bytes=MAX_LINE_BYTES)


def _day_span(at_s: int) -> Span:
    return Span(time.strftime("day=%Y-%m-%d", time.gmtime(at_s)), at_s, at_s + DAY_S)


def _months(days: Iterable[int]) -> list[Span]:
    """Return the whole months that days lie in."""
    found = []
    for year, month in sorted({time.gmtime(at_s)[:2] for at_s in days}):
        after = (year + month // 12, month % 12 + 1)
        bounds = [calendar.timegm((*at, 1, 0, 0, 0)) for at in ((year, month), after)]
        found.append(Span(f"month={year:04}-{month:02}", *bounds))
    return found


def _expect(line: Line | None, kind: type[T]) -> T:
    """Return a line of one kind.

    Raises:
        AnswerError: It is none.
    """
    if not isinstance(line, kind):
        raise AnswerError(
            "the controller answered in another form", remedy="use the `fleet` of its version"
        )
    return line


def _days(since: str, until: str) -> range:
    """Return the beginnings of the days.

    Raises:
        ArgumentError: A time makes no sense.
    """
    now_s = SystemClock().now_s()
    first_s = _at_s(since, "--since", now_s)
    last_s = _at_s(until, "--until", now_s) if until else now_s
    if last_s < first_s:
        raise ArgumentError("--until is before --since", remedy="write --since 7d --until 1d")
    if not 0 <= last_s <= now_s + MAX_DURATION_S:
        raise ArgumentError("--until is no time of telemetry", remedy="write a day before today")
    if last_s - first_s > MAX_DURATION_S:
        raise ArgumentError("--since is longer ago than ten years", remedy="write 7d, or a day")
    start = max(int(first_s) // DAY_S, 0)
    return range(start * DAY_S, (int(last_s) // DAY_S + 1) * DAY_S, DAY_S)


def _at_s(text: str, option: str, now_s: float) -> float:
    """Return a time that a person gave: a duration ago, a moment, or a day of UTC.

    Raises:
        ArgumentError: It is none of them.
    """
    text = text.strip()
    if _DAY.fullmatch(text):
        text += "T00:00:00+00:00"
    return time_s(text, option, now_s)


def _check_names(names: list[str], known: list[str]) -> None:
    """Refuse metrics that no device has reported.

    Raises:
        ArgumentError: There is one.
    """
    for name in names:
        if name not in known or not is_name(name):  # it becomes the name of a folder
            raise ArgumentError(
                f"no device has reported a metric {name!r}",
                remedy=f"the reported metrics are: {', '.join(known) or 'none yet'}",
            )


def _check_level(level: str) -> None:
    """Refuse what is no level.

    Raises:
        ArgumentError: It is none.
    """
    if level not in FOLDERS:
        raise ArgumentError(
            f"--level: there is no level {level!r}", remedy=f"levels are {', '.join(FOLDERS)}"
        )
