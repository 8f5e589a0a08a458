"""Draws a chart as a PNG picture, with matplotlib.

Rules:
- Names are drawn as they are: matplotlib would read `$` as the begin of a formula, and hide what
  begins with `_`.
- There is no window and no state of a process: one figure, drawn by Agg.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names

from controller.cli.charts import Chart
from controller.cli.drawing.lines import Line, is_finite
from controller.cli.drawing.quantities import scale_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

MAX_LINES: Final = 10
"""As many colours as matplotlib has by default."""

MAX_BARS: Final = 40
MAX_NAME_CHARS: Final = 40
TITLE_CHARS: Final = 90
DPI: Final = 120
FONTS: Final = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Emoji", "Symbola")
"""The first comes with matplotlib; the others are used where they are installed."""

STYLE: Final = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "axes.titlesize": 11, "axes.titlepad": 12, "axes.titlelocation": "left", "font.size": 10,
    "lines.linewidth": 1.6, "text.parse_math": False,
}  # fmt: skip


def png_bytes(chart: Chart, offset_s: float) -> bytes:
    """Return a chart as a picture.

    Args:
        chart: What is drawn.
        offset_s: Of the local time to UTC.

    Returns:
        A PNG file.
    """
    names = [_plain(line.name)[:MAX_NAME_CHARS] for line in chart.lines]
    columns = max(1, min(len(names), 100 // (max(map(len, names), default=0) + 6)))
    height = 4.4 + 0.25 * math.ceil(len(names) / columns)
    if chart.bars:
        height = max(2.4, 1.2 + 0.32 * len(chart.bars))
    fonts = [name for name in FONTS if name in get_font_names()]
    with rc_context({**STYLE, "font.family": fonts}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a character that the font does not have
        figure = Figure(figsize=(9.6, height), dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_title("\n".join(textwrap.wrap(_plain(chart.title), TITLE_CHARS)))
        if chart.lines:
            handles = _draw_lines(axes, chart, offset_s)
            if any(names):
                figure.legend(
                    handles, names, loc="outside lower left", ncols=columns, frameon=False
                )
        elif chart.bars:
            _draw_bars(axes, chart)
        else:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no values", ha="center", va="center", transform=axes.transAxes)
        file = io.BytesIO()
        canvas.print_png(file)
    return file.getvalue()


def _draw_lines(axes: Axes, chart: Chart, offset_s: float) -> list[Line2D]:
    values = [v for line in chart.lines for _, v in line.points if is_finite(v)]
    scale = scale_of(values, chart.unit)
    zone = timezone(timedelta(seconds=offset_s))
    handles: list[Line2D] = []
    for line in chart.lines:
        times, shown = _with_gaps(line, chart.step_s)
        moments = date2num([datetime.fromtimestamp(at_s, UTC) for at_s in times])
        few = len(shown) <= MAX_BARS
        handles += axes.plot(
            moments, [v / scale.divisor for v in shown], marker="o" if few else "", markersize=3
        )
    begin, end = date2num([datetime.fromtimestamp(at_s, UTC) for at_s in chart.span_s])
    axes.set_xlim(begin, end)
    locator = AutoDateLocator(tz=zone)
    axes.xaxis.axis_date(zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
    least, greatest = min(values, default=0.0), max(values, default=0.0)
    if 0 <= least <= 0.4 * greatest:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(_named(chart.name, scale.unit))
    return handles


def _draw_bars(axes: Axes, chart: Chart) -> None:
    values = [bar.value for bar in chart.bars if bar.value is not None and is_finite(bar.value)]
    scale = scale_of(values, chart.unit)
    places = list(range(len(chart.bars)))
    lengths = [0.0 if b.value is None or not is_finite(b.value) else b.value for b in chart.bars]
    drawn = axes.barh(places, [length / scale.divisor for length in lengths], height=0.7)
    axes.bar_label(drawn, labels=[bar.text for bar in chart.bars], padding=4)
    names = [_plain(bar.name)[:MAX_NAME_CHARS] for bar in chart.bars]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(_named(chart.name, scale.unit))


def _with_gaps(line: Line, step_s: float) -> tuple[list[float], list[float]]:
    """Return times and values, with a value that is not drawn where there were none for a step."""
    times: list[float] = []
    values: list[float] = []
    for at_s, value in line.points:
        if times and at_s - times[-1] > step_s * 1.5:
            times.append(times[-1] + step_s)
            values.append(math.nan)
        times.append(at_s)
        values.append(value if is_finite(value) else math.nan)
    return times, values


def _named(name: str, unit: str) -> str:
    return f"{name} ({unit})" if unit else name


def _plain(text: str) -> str:
    return f" {text}" if text.startswith("_") else text
