"""Asks a query of the telemetry, and makes its answer text or a file.

Rules:
- Through a pipe a table has the values as they are; only on a terminal they have units of people,
  and a column that shows how they went.
- JSON, CSV and Parquet have what the controller answered, whoever reads it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.cli.charts import (
    MINUTE,
    UNITS_S,
    Chart,
    chart,
    main_statistic,
    shape_of,
    trends,
)
from controller.cli.drawing.bars import EIGHTHS, bars
from controller.cli.drawing.lines import Canvas, shortened
from controller.cli.drawing.plot import MAX_LINES, plot
from controller.cli.drawing.quantities import quantity_text, scale_of, unit_of
from controller.cli.drawing.sparkline import BLOCKS, sparkline
from controller.cli.formats import PLOT, PNG, TABLE, Form, Kind, write_bytes, write_records
from controller.cli.hints import about_question
from controller.cli.lists import time_heading
from controller.cli.query_table import Columns, laid_out
from controller.cli.questions import checked, span_s, title_of, words_of
from controller.cli.repeating import Page, write_page
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.domain.selectors import joined
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import TelemetryTable
from wire.clock import SystemClock
from wire.console.output import (
    can_show,
    has_style,
    is_terminal,
    left_out_text,
    remark,
    showable,
)
from wire.console.table import wrap
from wire.console.text import local_time, plain_text

TREND_CELLS: Final = 24
MAX_TRENDS: Final = 200
"""Of more groups nobody looks at each, and their answer would be long."""

DEVICE: Final = "device"
MAX_BARS: Final = 200
MOST_ROWS, LEAST_ROWS, PIPE_ROWS = 20, 5, 12
"""Rows of the field of a plot: on a high terminal, on a low one, and elsewhere."""

BESIDE_ROWS: Final = 7
"""Of a plot's title, unit, axis and legend, and of the prompt."""

FOR_PEOPLE: Final = (TABLE, PLOT)
UNICODE: Final = f"{BLOCKS}{EIGHTHS}\N{BRAILLE PATTERN BLANK}┤│└─┬━·…°"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the controller said."""

    question: TelemetryQuestion
    table: TelemetryTable
    range_s: tuple[float, float]
    """The time that it is about, by the clock here."""

    trends: dict[tuple[object, ...], list[float | None]] | None = None
    """How each group went; None if nobody asked."""

    hints: tuple[str, ...] = ()
    """Why there may be no values."""


Choose = Callable[[TelemetryTable], TelemetryTable]
"""Takes some of the rows, in another order."""


def ask(
    api: Fleet, question: TelemetryQuestion, *, spark: bool, choose: Choose | None = None
) -> Answer:
    """Ask the controller.

    Args:
        api: The controller.
        question: The query.
        spark: Whether to ask how the values went, too.
        choose: Takes some of the rows; None takes all.

    Returns:
        Its answer.

    Raises:
        ArgumentError: A value of the query makes no sense.
        FaultError: The controller refuses it.
    """
    table = api.telemetry.answer(checked(question))
    asked = question
    if choose is not None:
        whole, table = table, choose(table)
        asked = question if len(whole.rows) <= MAX_TRENDS else _only_devices(question, table)
    range_s = span_s(question, SystemClock().now_s())
    hints = about_question(api, question) if not table.rows else ()
    answer = Answer(question=question, table=table, range_s=range_s, hints=tuple(hints))
    return replace(answer, trends=_trends(api, answer, asked)) if spark else answer


def wants_trends(spark: bool | None, form: Form) -> bool:
    """Tell whether a table shows how values went: on a terminal, unless it was said."""
    return form.name == TABLE and (is_terminal() if spark is None else spark)


def show(answer: Answer, form: Form) -> None:
    """Write an answer.

    Args:
        answer: The answer.
        form: How.

    Raises:
        ArgumentError: A file cannot be written.
    """
    table = answer.table
    if form.name in FOR_PEOPLE:
        write_page(page(answer, form))
    elif form.name == PNG:
        for told in _picture(answer, form):
            remark(told)
    else:
        write_records(form, table, _kinds(answer), table.rows)


def page(answer: Answer, form: Form) -> Page:
    """Return an answer as people read it.

    Args:
        answer: The answer.
        form: A table, or a plot.

    Returns:
        The lines, and what is to be said beside them.
    """
    return _table(answer) if form.name == TABLE else _plot(answer)


def _told(answer: Answer) -> list[str]:
    """Return what is said of an answer without values, and of one that is not from minutes alone.

    Args:
        answer: The answer.
    """
    if answer.table.rows:
        levels = {source.level for source in answer.table.sources}
        if not is_terminal() or levels <= {"minute"}:
            return []
        since = local_time(answer.table.sources[0].since_s)
        named = [f"{name}s" for name in ("day", "hour", "minute") if name in levels]
        return [f"from rows of {', '.join(named)}, since {since}"]
    statistic = main_statistic(answer.question, answer.table.columns)
    none = f"no values: {title_of(answer.question, [statistic])}"
    return ["; ".join([none, *answer.hints])]


def _only_devices(question: TelemetryQuestion, table: TelemetryTable) -> TelemetryQuestion:
    """Return a query that leaves out devices that an answer does not name."""
    by = words_of(question.by)
    if DEVICE not in by or not table.rows:
        return question
    column = table.columns.index(DEVICE)
    devices = sorted({str(row[column]) for row in table.rows[:MAX_TRENDS]})
    only = f"id in ({','.join(devices)})"
    return replace(question, selector=joined(question.selector, only))


def _trends(
    api: Fleet, answer: Answer, question: TelemetryQuestion
) -> dict[tuple[object, ...], list[float | None]] | None:
    table = answer.table
    by = words_of(question.by)
    too_many = len(table.rows) > MAX_TRENDS
    if question.step or MINUTE in by or not table.rows or too_many:
        return None
    begin_s, end_s = answer.range_s
    minutes = max(1, math.ceil((end_s - begin_s) / TREND_CELLS / 60))
    # Whole hours and days, of which the controller has rows.
    for size in (60, 1440):
        if minutes > size:
            minutes = math.ceil(minutes / size) * size
    shape = shape_of(question, table)
    statistic = main_statistic(question, [table.columns[i] for i in shape.statistics])
    asked = replace(question, step=f"{minutes}m", stat=statistic)
    try:
        found = api.telemetry.answer(checked(asked))
    except FaultError:  # such as too many rows: the table says enough
        return None
    return trends(asked, found, answer.range_s, most=TREND_CELLS + 1)


def _kinds(answer: Answer) -> list[tuple[str, Kind]]:
    shape = shape_of(answer.question, answer.table)
    return [
        (name, "whole" if name in UNITS_S else "number" if i in shape.statistics else "text")
        for i, name in enumerate(answer.table.columns)
    ]


def _table(answer: Answer) -> Page:
    table = answer.table
    shape = shape_of(answer.question, table)
    headings = [_heading(table, i) for i in range(len(table.columns))]
    rows = [[_cell(answer, i, value) for i, value in enumerate(row)] for row in table.rows]
    names = [table.columns[i] for i in shape.statistics]
    main = main_statistic(answer.question, names)
    trend = None
    if answer.trends is not None:
        trend = len(headings)
        headings.append(f"{main} over time".upper())
        unicode = can_show(UNICODE)
        for shown, row in zip(rows, table.rows, strict=True):
            group = tuple(row[i] for i in shape.groups)
            shown.append(sparkline(answer.trends.get(group, ()), unicode=unicode))
    columns = Columns(
        headings=tuple(headings),
        groups=shape.groups,
        time=shape.time,
        statistics=shape.statistics,
        wanted=shape.statistics
        if answer.question.stat
        else tuple(i for i in shape.statistics if table.columns[i] == main),
        trend=trend,
    )
    found = laid_out(columns, rows)
    left_out = [left_out_text(found)] if found.left_out else []
    return Page(found.lines, [*left_out, *_told(answer)])


def _heading(table: TelemetryTable, column: int) -> str:
    """Return the heading of a column; of one of times with the zone."""
    name = table.columns[column]
    if name not in UNITS_S:
        return name.upper()
    cells = [row[column] for row in table.rows]
    times_s = [cell * UNITS_S[name] for cell in cells if isinstance(cell, int | float)]
    return time_heading(name.removesuffix("_s").upper(), times_s)


def _cell(answer: Answer, column: int, value: str | float | None) -> object:
    """Return a value as a table shows it."""
    name = answer.table.columns[column]
    if name in UNITS_S and isinstance(value, int | float):
        return local_time(value * UNITS_S[name])
    if is_terminal() and column in shape_of(answer.question, answer.table).statistics:
        return quantity_text(value, unit_of(answer.question.metric, name))
    return value


def _plot(answer: Answer) -> Page:
    size = shutil.get_terminal_size()
    drawn = _chart(answer, MAX_LINES, MAX_BARS)
    room = min(max(size.lines - BESIDE_ROWS, LEAST_ROWS), MOST_ROWS)
    canvas = Canvas(
        width=max(size.columns, 1),
        height=room if is_terminal() else PIPE_ROWS,
        unicode=can_show(UNICODE),
        colour=has_style(),
    )
    title = [
        shortened(line, canvas.width, unicode=canvas.unicode)
        for line in wrap(plain_text(drawn.title), canvas.width)
    ]
    field = [*title, *(_field(drawn, canvas) if drawn.lines else bars(drawn.bars, canvas))]
    empty = not (drawn.lines or drawn.bars)
    return Page([] if empty else [*map(showable, field)], [*_left_out(drawn), *_told(answer)])


def _field(drawn: Chart, canvas: Canvas) -> list[str]:
    scale = scale_of([v for line in drawn.lines for _, v in line.points], drawn.unit)
    return plot(
        drawn.lines,
        canvas,
        span_s=drawn.span_s,
        step_s=drawn.step_s,
        offset_s=offset_s(drawn.span_s[1]),
        unit=f"{drawn.name}{', ' if scale.unit else ''}{scale.unit}",
        divisor=scale.divisor,
    )


def _picture(answer: Answer, form: Form) -> list[str]:
    from controller.cli import picture

    drawn = _chart(answer, picture.MAX_LINES, picture.MAX_BARS)
    write_bytes(picture.png_bytes(drawn, offset_s(drawn.span_s[1])), form)
    return [*_left_out(drawn), *_told(answer)]


def _chart(answer: Answer, most_lines: int, most_bars: int) -> Chart:
    question = answer.question
    over_time = bool(question.step) or MINUTE in words_of(question.by)
    most = most_lines if over_time else most_bars
    return chart(question, answer.table, answer.range_s, most=most)


def _left_out(drawn: Chart) -> list[str]:
    if not drawn.left_out:
        return []
    count = max(len(drawn.lines), len(drawn.bars))
    told = f"drawn are the {count} with the greatest values, and {drawn.left_out} more are not"
    return [f"{told}; choose others with --where or --selector"]


def offset_s(at_s: float) -> float:
    """Return the offset of the local time to UTC."""
    return float(time.localtime(at_s).tm_gmtoff)
