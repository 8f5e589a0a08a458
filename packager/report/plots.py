"""Plots for the report's page: candidates as points, limits as lines, as SVG inside HTML.

Rules:
- Equal points give equal bytes: no date, fixed identifiers, text that stays text.
- Colours are CSS variables of the page, so that light mode, dark mode and paper have their own.
- Up and left is better. A point far below the others is drawn at the lower edge; otherwise the
  others would all be in one line.
- Names are in a column beside the points, each with a line to its point, so that they never
  overlap.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from packager.report.marks import ALL_MARKS, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES_LEFT_IN: Final = 0.72
AXES_IN: Final = 3.3
NAMES_LEFT_IN: Final = 0.22
CHARACTER_IN: Final = 0.075
"""Width of one character of a name, with some space for other fonts."""

MIN_AXES_IN: Final = 3.0
NAME_IN: Final = 0.2
"""Height that one name takes."""

BELOW_IN: Final = 0.62
ABOVE_IN: Final = 0.15
LABEL_AT: Final = 0.15
"""Height at which the text of a vertical line begins; most points are further up."""

PAD: Final = 0.1
"""Share of the range that stays empty around the points."""

NARROWEST: Final = 1e-3
"""Least relative range of an axis; a smaller one is noise that would look like a difference."""

NEAR: Final = 1.6
NEAR_SHARE: Final = 0.05
"""A limit beyond this factor (horizontal) or this share of the greatest value (vertical) from the
points is only mentioned; if it were drawn, the points would be too close together."""

MIN_TICKS: Final = 3
MAX_TICKS: Final = 6
_STEPS: Final = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))

_INK, _FAINT, _PAPER, _LIMIT = "#010101", "#020202", "#030303", "#040404"
_VARIABLES: Final = {_INK: "ink", _FAINT: "faint", _PAPER: "paper", _LIMIT: "limit"}
"""Colours that stand for the CSS variables which replace them."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in a plot."""

    name: str
    runtime: str
    x: float
    y: float
    kept: bool
    refused: bool
    """Whether it missed a gate; then it is not part of the front."""

    first: bool = False
    """Whether it serves first."""

    text: str
    """The text that appears when the reader points at it."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A gate, or a limit of the device."""

    at: float
    text: str


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """What one axis shows."""

    label: str
    smaller_is_better: bool = False
    limits: tuple[Limit, ...] = ()


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A finished plot."""

    svg: str
    remarks: tuple[str, ...]
    """Texts about what it does not show."""


def front(points: Sequence[Point], y: Axis) -> tuple[Point, ...]:
    """Return the points that no other point beats in both directions, from left to right.

    Args:
        points: The candidates; those that missed a gate are left out.
        y: The vertical axis, which says whether smaller is better.

    Returns:
        The Pareto front.
    """
    found: list[Point] = []
    sign = 1.0 if y.smaller_is_better else -1.0
    for point in sorted(points, key=lambda p: (p.x, sign * p.y, p.name)):
        if not point.refused and (not found or sign * point.y < sign * found[-1].y):
            found.append(point)
    return tuple(found)


def spread(wanted: Sequence[float], gap: float, end: float) -> list[float]:
    """Move positions as little as possible so that neighbours are at least a gap apart.

    Args:
        wanted: Rising positions.
        gap: The least distance.
        end: The greatest position; the least is 0. There must be enough space for all.

    Returns:
        Rising positions.

    Source:
        Isotonic regression by pooling adjacent violators.
    """
    pools: list[tuple[float, int]] = []
    for number, value in enumerate(wanted):
        mean, size = value - number * gap, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    last = end - (len(means) - 1) * gap
    return [min(max(mean, 0.0), last) + number * gap for number, mean in enumerate(means)]


def draw(points: Sequence[Point], x: Axis, y: Axis, *, title: str) -> Plot:
    """Draw candidates.

    Args:
        points: At least one.
        x: The horizontal axis: logarithmic, smaller is better.
        y: The vertical axis.
        title: A description for screen readers; no two plots of a page may have the same.

    Returns:
        The plot.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    named = [point for point in points if point.kept]
    axes_in = max(MIN_AXES_IN, NAME_IN * len(named))
    height_in = axes_in + BELOW_IN + ABOVE_IN
    longest = max((len(point.name) for point in named), default=0)
    width_in = AXES_LEFT_IN + AXES_IN + NAMES_LEFT_IN + CHARACTER_IN * (longest + 3)
    options = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "text.parse_math": False,
        "font.size": 9,
        "font.family": "DejaVu Sans",
    }
    x, far_x = _with_near_limits(x, lambda at: _is_beside(at, [p.x for p in points]))
    y, far_y = _with_near_limits(y, lambda at: _is_level(at, [p.y for p in points]))
    remarks = [f"{text} lies outside the plot" for text in (*far_x, *far_y)]
    buffer = io.StringIO()
    with rc_context(options):
        figure = Figure(figsize=(width_in, height_in), facecolor="none")
        FigureCanvasSVG(figure)
        share = (
            AXES_LEFT_IN / width_in, BELOW_IN / height_in, AXES_IN / width_in, axes_in / height_in
        )  # fmt: skip
        axes = figure.add_axes(share, facecolor="none")
        _set_axes(axes, points, x, y)
        _draw_limits(axes, x, y)
        line = front(points, y)
        if len(line) > 1:
            axes.step(
                [p.x for p in line], [p.y for p in line],
                where="post", color=_INK, linewidth=1.4, alpha=0.6, zorder=2,
            )  # fmt: skip
        remarks += _draw_points(axes, points)
        _draw_names(axes, named, NAME_IN / axes_in)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    return Plot(svg=_inline(buffer.getvalue(), points, title), remarks=tuple(remarks))


def _set_axes(axes: Axes, points: Sequence[Point], x: Axis, y: Axis) -> None:
    from matplotlib.ticker import (
        FixedFormatter,
        FixedLocator,
        FuncFormatter,
        MaxNLocator,
        NullLocator,
    )

    left, right = _log_range([*(p.x for p in points), *(limit.at for limit in x.limits)])
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    # A point that missed a gate may be far below; all others are inside the plot.
    values = [p.y for p in points]
    best = min(values) if y.smaller_is_better else max(values)
    wanted = [best, *(p.y for p in points if not p.refused), *(limit.at for limit in y.limits)]
    low, high = _range(wanted)
    axes.set_ylim(*((high, low) if y.smaller_is_better else (low, high)))
    ticks = log_ticks(left, right)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(MAX_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
    axes.set_xlabel(x.label, color=_INK)
    axes.set_ylabel(y.label, color=_INK)
    axes.tick_params(colors=_INK, length=3)
    axes.grid(visible=True, color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(_INK)


def _draw_limits(axes: Axes, x: Axis, y: Axis) -> None:
    style: dict[str, Any] = {"color": _LIMIT, "linewidth": 1.0, "linestyle": (0, (4, 3))}
    words: dict[str, Any] = {"color": _LIMIT, "fontsize": 8}
    for limit in y.limits:
        axes.axhline(limit.at, **style)
        axes.annotate(
            limit.text, (0.01, limit.at), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", **words,
        )  # fmt: skip
    for limit in x.limits:
        axes.axvline(limit.at, **style)
        axes.annotate(
            limit.text, (limit.at, LABEL_AT), xycoords=("data", "axes fraction"),
            xytext=(-3, 0), textcoords="offset points",
            rotation=90, ha="right", va="bottom", **words,
        )  # fmt: skip


def _draw_points(axes: Axes, points: Sequence[Point]) -> list[str]:
    low, high = sorted(axes.get_ylim())
    edge = axes.get_ylim()[0]
    outside: list[str] = []
    for number, point in enumerate(points):
        inside = low <= point.y <= high
        if not inside:
            outside.append(point.name)
        drawn = mark(point.runtime)
        axes.plot(
            [point.x], [point.y if inside else edge],
            marker=drawn.shape, color=drawn.colour, linestyle="none", clip_on=False,
            markersize=7.5 if point.kept else 5.5,
            markerfacecolor=drawn.colour if point.kept else _PAPER,
            markeredgewidth=1.2, alpha=1.0 if point.kept else 0.75,
            zorder=4 if point.kept else 3, gid=f"point-{number}",
        )  # fmt: skip
        if point.first:
            axes.plot(
                [point.x], [point.y], marker="o", color=_INK, linestyle="none", clip_on=False,
                markersize=14, markerfacecolor="none", markeredgewidth=1.2, zorder=5,
            )  # fmt: skip
    return [f"far below, drawn at the lower edge: {', '.join(outside)}"] if outside else []


def _draw_names(axes: Axes, named: Sequence[Point], gap: float) -> None:
    def height(point: Point) -> float:
        _, y = axes.transAxes.inverted().transform(axes.transData.transform((point.x, point.y)))
        return float(y)

    # If points have the same height, the left one gets the upper name, so their lines do not cross.
    ordered = sorted(named, key=lambda p: (round(height(p), 3), -p.x, p.name))
    places = spread([height(point) for point in ordered], gap, 1.0)
    for point, place in zip(ordered, places, strict=True):
        drawn = mark(point.runtime)
        axes.annotate(
            f"{drawn.glyph} {point.name}", (point.x, point.y),
            xytext=(1.0 + NAMES_LEFT_IN / AXES_IN, place), textcoords="axes fraction",
            va="center", color=_INK, annotation_clip=False,
            fontweight="bold" if point.first else "normal",
            fontsize=8,
            arrowprops={
                "arrowstyle": "-", "color": drawn.colour, "linewidth": 0.7, "alpha": 0.5,
                "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _inline(text: str, points: Sequence[Point], title: str) -> str:
    """Return the drawing as SVG for a page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    label = html.escape(title)
    text = text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    for number, point in enumerate(points):
        told = f"<g><title>{html.escape(f'{point.name}: {point.text}')}</title>"
        text = text.replace(f'<g id="point-{number}">', told)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r"( ?)(['\"]?DejaVu Sans['\"]?)(?=[;\"])", r"\1inherit", text)
    variables = {m.colour: f"mark-{m.number}" for m in ALL_MARKS}
    for colour, variable in (_VARIABLES | variables).items():
        text = text.replace(colour, f"var(--{variable})")
    return text.strip()


def _with_near_limits(axis: Axis, is_near: Callable[[float], bool]) -> tuple[Axis, tuple[str, ...]]:
    """Return an axis with the limits that can be drawn, and the texts of the others."""
    near = tuple(limit for limit in axis.limits if is_near(limit.at))
    far = tuple(limit.text for limit in axis.limits if limit not in near)
    return msgspec.structs.replace(axis, limits=near), far


def _is_beside(at: float, values: Sequence[float]) -> bool:
    return min(values) / NEAR <= at <= max(values) * NEAR


def _is_level(at: float, values: Sequence[float]) -> bool:
    room = NEAR_SHARE * max(map(abs, values))
    return min(values) - room <= at <= max(values) + room


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    middle, width = (low + high) / 2, max(high - low, NARROWEST * abs(high), 1e-9)
    half = width * (0.5 + PAD)
    return middle - half, middle + half


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    ratio = max(high / low, 1.0 + NARROWEST * 100)
    middle, factor = math.sqrt(low * high), ratio ** (0.5 + PAD)
    return middle / factor, middle * factor


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values between two ends, few enough to fit beside each other.

    Args:
        low: The lower end, positive.
        high: The upper end.

    Returns:
        Rising values; at least two.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        found = [tick for tick in ticks if low <= tick <= high]
        if MIN_TICKS <= len(found) <= MAX_TICKS:
            return found
        if len(found) > MAX_TICKS:
            return found[:: -(-len(found) // MAX_TICKS)]
    from matplotlib.ticker import MaxNLocator

    return [float(t) for t in MaxNLocator(4).tick_values(low, high) if low <= t <= high]
