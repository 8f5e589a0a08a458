from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.drawing.axes import TIME_STEPS_S, nice_step, time_ticks, value_axis
from controller.cli.drawing.lines import Canvas, Line
from controller.cli.drawing.plot import MAX_LINES, plot
from wire.console.table import cell_width

ANSI = re.compile(r"\x1b\[\d+m")
BEGIN_S = 1_700_000_400.0  # 22:20 in UTC
SPAN_S = (BEGIN_S, BEGIN_S + 1200)
RISING = Line("fp32", [(BEGIN_S + 300 * i, 10.0 * i) for i in range(5)])
FALLING = Line("int8", [(BEGIN_S + 300 * i, 40.0 - 10 * i) for i in range(5)])


def drawn(lines: list[Line], canvas: Canvas, *, unit: str = "p95, ms") -> list[str]:
    return plot(lines, canvas, span_s=SPAN_S, step_s=300.0, unit=unit)


def dots(shown: list[str]) -> int:
    return sum(len(re.findall(r"[\u2801-\u28ff]", line)) for line in shown)


def test_one_line_has_dots_of_braille() -> None:
    assert drawn([RISING], Canvas(40, 6)) == [
        "p95, ms",
        "40 ┤                              ⢀⣀⠤⠔⠒⠉",
        "   │                        ⣀⣀⠤⠔⠒⠉⠁",
        "   │                 ⢀⣀⠤⠤⠒⠊⠉",
        "20 ┤           ⢀⣀⠤⠔⠒⠉⠁",
        "   │     ⢀⣀⠤⠔⠒⠉⠁",
        " 0 ┤⣀⠤⠔⠒⠉⠁",
        "   └┬─────────────────┬────────────────┬",
        "  22:20             22:30          22:40",
        "━━ fp32",
    ]


def test_without_colours_each_line_has_its_mark() -> None:
    assert drawn([RISING, FALLING], Canvas(40, 6, unicode=False)) == [
        "p95, ms",
        "40 |+++++                          *****",
        "   |     +++++++            *******",
        "   |            ++++     ***",
        "20 |              **+++++++",
        "   |     *********         ++++++++",
        " 0 |*****                          +++++",
        "   ++-----------------+----------------+",
        "  22:20             22:30          22:40",
        "* fp32   + int8",
    ]


def test_colours_change_nothing_but_the_colour() -> None:
    coloured = drawn([RISING], Canvas(40, 6, colour=True))
    assert coloured != drawn([RISING], Canvas(40, 6))
    assert [ANSI.sub("", line) for line in coloured] == drawn([RISING], Canvas(40, 6))


def test_a_gap_is_not_drawn_over() -> None:
    points = [point for point in RISING.points if point[0] != BEGIN_S + 600]
    whole, gap = (drawn([Line("", p)], Canvas(40, 6)) for p in (RISING.points, points))
    assert dots(whole) > dots(gap) + 8
    alone = drawn([Line("", RISING.points[2:3])], Canvas(40, 5))
    assert dots(alone) == 1


def test_the_names_of_many_lines_continue_on_the_next_row() -> None:
    lines = [Line(f"name of line {n}", RISING.points) for n in range(4)]
    *_, first, second = drawn(lines, Canvas(50, 4))
    assert first == "* name of line 0   + name of line 1"
    assert second == "x name of line 2   o name of line 3"


NUMBERS = st.floats() | st.sampled_from([0.0, 1.0, 1.0 + 1e-12, 1.7e308, -1.7e308, 5e-324])
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)
TIMES = st.floats(0, 4e9)


@st.composite
def any_lines(draw: st.DrawFn) -> list[Line]:
    found = draw(st.lists(st.tuples(NAMES, st.lists(st.tuples(TIMES, NUMBERS), max_size=12))))
    return [Line(name, sorted(points, key=lambda point: point[0])) for name, points in found]


@given(
    any_lines(), st.integers(1, 120), st.integers(0, 20), st.booleans(), st.booleans(),
    TIMES, st.floats(0, 1e9), st.sampled_from([60.0, 300.0, 86_400.0]), NAMES,
)  # fmt: skip
def test_no_line_is_wider_than_asked_whatever_is_drawn(  # noqa: PLR0913, PLR0917
    lines: list[Line],
    width: int,
    height: int,
    unicode: bool,
    colour: bool,
    begin_s: float,
    length_s: float,
    step_s: float,
    unit: str,
) -> None:
    canvas = Canvas(width, height, unicode=unicode, colour=colour)
    span = (begin_s, begin_s + length_s)
    shown = plot(lines, canvas, span_s=span, step_s=step_s, offset_s=3600.0, unit=unit)
    for line in shown:
        bare = ANSI.sub("", line)
        assert cell_width(bare) <= width
        assert bare == bare.rstrip()
        assert colour or bare == line
    names = [unit, *(line.name for line in lines)]
    if not unicode and all(name.isascii() for name in names):
        assert "".join(shown).isascii()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.integers(-1, 12))
def test_an_axis_holds_all_values(values: list[float], ticks: int) -> None:
    axis = value_axis(values, ticks)
    assert all(axis.low <= value <= axis.high for value in values)
    assert 1 <= len(axis.ticks) == len(axis.labels) <= 30
    assert list(axis.ticks) == sorted(axis.ticks)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([], ("0.0", "0.5", "1.0")),
        ([0.0, 0.0], ("0.0", "0.5")),
        ([71.2, 71.3], ("70.5", "71.0", "71.5", "72.0")),
        ([3.0, 95.0], ("0", "50", "100")),
        ([-5.0, 5.0], ("-5", "0", "5")),
        ([0.0012, 0.0031], ("0.000", "0.002", "0.004")),
        ([2e9, 9e9], ("0", "5e+09", "1e+10")),
    ],
)
def test_values_are_named_with_round_numbers(values: list[float], labels: tuple[str, ...]) -> None:
    assert value_axis(values, 3).labels == labels


@given(st.floats(1e-300, 1e300))
def test_a_nice_step_is_at_most_two_and_a_half_times_as_great(least: float) -> None:
    assert least <= nice_step(least) <= 2.5001 * least


@given(TIMES, st.floats(0, 4e9), st.integers(0, 20), st.sampled_from([0.0, 3600.0, -12_600.0]))
def test_times_are_round_and_within(
    begin_s: float, length_s: float, most: int, offset_s: float
) -> None:
    ticks = time_ticks(begin_s, begin_s + length_s, most, offset_s)
    assert len(ticks) <= most
    assert all(begin_s - 1 <= tick.at_s <= begin_s + length_s + 1 for tick in ticks)
    gaps = {b.at_s - a.at_s for a, b in pairwise(ticks)}
    assert gaps <= set(TIME_STEPS_S)


def test_midnight_is_a_date_in_local_time() -> None:
    ticks = time_ticks(1_700_000_000.0, 1_700_000_000.0 + 8 * 3600, 8, offset_s=3600.0)
    assert [tick.label for tick in ticks][:3] == ["11-15", "01:00", "02:00"]
    assert ticks[0].at_s % 86_400 == 82_800


def test_more_lines_than_colours_are_the_caller_s_choice() -> None:
    lines = [Line(str(number), RISING.points) for number in range(MAX_LINES + 3)]
    assert drawn(lines, Canvas(60, 5))[-1].count("   ") == MAX_LINES - 1


def test_values_that_cannot_be_drawn_are_left_out() -> None:
    points = [(BEGIN_S, math.nan), (BEGIN_S + 300, math.inf), (BEGIN_S + 600, 3.0)]
    assert drawn([Line("", points)], Canvas(40, 4)) == drawn([Line("", points[-1:])], Canvas(40, 4))
