from __future__ import annotations

import io
import math

import pytest
from matplotlib.image import imread

from controller.cli.charts import Chart
from controller.cli.drawing.bars import Bar
from controller.cli.drawing.lines import Line
from controller.cli.drawing.quantities import Unit
from controller.cli.picture import MAX_LINES, png_bytes

BEGIN_S = 1_764_000_000.0


def chart(lines: list[Line], bars: list[Bar], *, title: str = "p95 of x, the last 1h") -> Chart:
    span = (BEGIN_S, BEGIN_S + 3600)
    return Chart(title, "p95", Unit("By", per_s=True), lines, bars, span, 300.0, 0)


def points(*values: float) -> list[tuple[float, float]]:
    return [(BEGIN_S + 300 * number, value) for number, value in enumerate(values)]


NOTHING = Line("b", points(math.nan))
CHARTS = {
    "empty": chart([], []),
    "one point": chart([Line("", points(3.0))], []),
    "not finite": chart([Line("a", points(math.nan, math.inf, 1.0)), NOTHING], []),
    "great": chart([Line("a", points(1.7e308, -1.7e308, 0.0))], []),
    "alike": chart([Line("a", points(5.0, 5.0))], []),
    "a gap": chart([Line("a", [*points(1.0, 2.0), (BEGIN_S + 3000, 2e6)])], []),
    "names": chart(
        [Line(f"_hidden $x_{n}$ \N{MOVIE CAMERA}" * 3, points(1.0)) for n in range(MAX_LINES)],
        [], title="$" * 200 + " \\frac{ _x",
    ),
    "bars": chart([], [Bar(f"device-{n}", n - 5.0, "text") for n in range(12)]),
    "bars without values": chart([], [Bar("_a$", None, "-"), Bar("b", math.nan, "-")]),
    "great bars": chart([], [Bar("a", 1.7e308, "x"), Bar("b", -1.7e308, "y")]),
}  # fmt: skip


@pytest.mark.parametrize("drawn", CHARTS.values(), ids=CHARTS.keys())
def test_whatever_there_is_becomes_a_picture(drawn: Chart) -> None:
    picture = imread(io.BytesIO(png_bytes(drawn, 3600.0)))
    height, width, _ = picture.shape
    assert width == 1152
    assert 250 < height < 2000
    assert picture.min() < 0.5, "something is drawn on white"
