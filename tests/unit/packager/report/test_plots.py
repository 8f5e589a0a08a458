"""The parts of a plot: the front, the places of names, the ticks."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.report.marks import MARKS
from packager.report.plots import Axis, Point, draw, front, log_ticks, spread


def point(name: str, x: float, y: float, *, refused: bool = False) -> Point:
    return Point(name=name, runtime="tvm", x=x, y=y, kept=not refused, refused=refused, text="")


def test_the_front_holds_what_nothing_beats() -> None:
    points = [
        point("slow", 3, 0.9), point("fast", 1, 0.8), point("worse", 2, 0.7),
        point("refused", 0.5, 0.99, refused=True), point("middle", 2, 0.85), point("equal", 4, 0.9),
    ]  # fmt: skip
    assert [p.name for p in front(points, Axis(label="top1"))] == ["fast", "middle", "slow"]
    errors = Axis(label="mae", smaller_is_better=True)
    assert [p.name for p in front(points, errors)] == ["fast", "worse"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_names_are_moved_apart_and_stay_in_order(wanted: list[float]) -> None:
    wanted = sorted(wanted)
    places = spread(wanted, 0.05, 1.0)
    assert all(b - a >= 0.05 - 1e-9 for a, b in itertools.pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 1 + 1e-9
    if all(b - a >= 0.05 for a, b in itertools.pairwise(wanted)):
        assert places == pytest.approx(wanted)


@given(st.floats(1e-3, 1e6), st.floats(1.11, 1e6))
def test_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert 1 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= low * ratio for tick in ticks)


def test_one_point_can_be_drawn() -> None:
    plot = draw([point("tvm-only", 1.0, 0.0)], Axis(label="ms"), Axis(label="top1"), title="t")
    drawing = ET.fromstring(plot.svg)  # noqa: S314 - ours
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{MARKS['tvm'].glyph} tvm-only" in texts
    assert plot.remarks == ()
