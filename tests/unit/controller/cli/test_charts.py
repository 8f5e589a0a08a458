from __future__ import annotations

import pytest

from controller.cli.charts import REPORTED_S, chart, main_statistic, shape_of, trends
from controller.cli.drawing.quantities import Unit
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import TelemetryTable

LATENCY = "inference_latency_ms"
RANGE_S = (3000.0, 4200.0)


def by_variant(**changes: str) -> TelemetryQuestion:
    return TelemetryQuestion(metric=LATENCY, by="variant", **changes)  # type: ignore[arg-type]


STEPS = TelemetryTable(
    columns=["start_s", "variant", "count", "p95"],
    rows=[[3000, "fp32", 5, 20], [3000, "int8", 5, 8.5], [3300, "fp32", 5, None],
          [3600, "fp32", 5, 22], [3600, "", 1, 1]],
)  # fmt: skip


def test_lines_over_time() -> None:
    found = chart(by_variant(step="5m"), STEPS, RANGE_S, most=6)
    assert [(line.name, list(line.points)) for line in found.lines] == [
        ("fp32", [(3000.0, 20.0), (3600.0, 22.0)]),
        ("int8", [(3000.0, 8.5)]),
        ("-", [(3600.0, 1.0)]),
    ]
    assert (found.name, found.unit, found.step_s) == ("p95", Unit("ms"), 300.0)
    assert found.title == "p95 of inference_latency_ms by variant, the last 1h, step 5m"
    assert (found.span_s, found.bars, found.left_out) == (RANGE_S, [], 0)


def test_the_greatest_are_kept_in_their_order() -> None:
    found = chart(by_variant(step="5m"), STEPS, RANGE_S, most=2)
    assert [line.name for line in found.lines] == ["fp32", "int8"]
    assert found.left_out == 1


def test_several_statistics_of_one_unit() -> None:
    table = TelemetryTable(
        columns=["start_s", "p50", "count", "p95"], rows=[[3000, 1, 5, 2], [3300, 1, 5, 3]]
    )
    asked = TelemetryQuestion(metric=LATENCY, stat="p50,count,p95", step="5m")
    found = chart(asked, table, RANGE_S, most=6)
    assert [line.name for line in found.lines] == ["p50", "p95"]
    assert found.name == "p50, p95"


def test_without_time_there_are_bars() -> None:
    table = TelemetryTable(columns=["variant", "p95"], rows=[["fp32", 20], ["int8\x1b", None]])
    found = chart(by_variant(stat="p95"), table, RANGE_S, most=6)
    assert [(bar.name, bar.value, bar.text) for bar in found.bars] == [
        ("fp32", 20.0, "20 ms"), ("int8\ufffd", None, "-"),
    ]  # fmt: skip
    whole = TelemetryTable(columns=["mean"], rows=[[71]])
    found = chart(TelemetryQuestion(metric="temperature_c"), whole, RANGE_S, most=6)
    assert [(bar.name, bar.text) for bar in found.bars] == [("mean", "71 °C")]


def test_minutes_are_time_too() -> None:
    table = TelemetryTable(columns=["variant", "minute", "p95"], rows=[["fp32", 50, 20]])
    asked = TelemetryQuestion(metric=LATENCY, by="variant, minute")
    found = chart(asked, table, RANGE_S, most=6)
    assert [(line.name, list(line.points)) for line in found.lines] == [("fp32", [(3000.0, 20.0)])]
    assert shape_of(asked, table) == (1, (0,), (2,))


def test_where_the_clocks_differ_the_plot_shows_what_there_is() -> None:
    found = chart(by_variant(step="5m"), STEPS, (90_000.0, 93_600.0), most=6)
    assert found.span_s == (3000.0, 3600.0)


def test_an_empty_answer_draws_nothing() -> None:
    found = chart(
        by_variant(step="5m"), TelemetryTable(columns=["start_s"], rows=[]), RANGE_S, most=1
    )
    assert (found.lines, found.bars, found.left_out) == ([], [], 0)


@pytest.mark.parametrize(
    ("stat", "columns", "main"),
    [
        ("", ["count", "mean", "p50", "p95", "max"], "p95"),
        ("", ["total", "rate"], "rate"),
        ("", ["count", "mean", "min", "max"], "mean"),
        ("max, p95", ["max", "p95"], "max"),
        ("", ["x"], "x"),
        ("", [], ""),
    ],
)
def test_one_statistic_stands_for_all(stat: str, columns: list[str], main: str) -> None:
    assert main_statistic(TelemetryQuestion(metric=LATENCY, stat=stat), columns) == main


def test_trends_have_a_value_for_each_step() -> None:
    table = TelemetryTable(
        columns=["start_s", "variant", "p95"],
        rows=[[3000, "fp32", 20], [3600, "fp32", 22], [3300, "int8", None], [3300, "x", 5]],
    )
    asked = by_variant(step="5m", stat="p95")
    assert trends(asked, table, RANGE_S, most=9) == {
        ("fp32",): [20.0, None, 22.0, None, None],
        ("int8",): [None] * 5,
        ("x",): [None, 5.0, None, None, None],
    }
    assert trends(asked, table, RANGE_S, most=3)["fp32",] == [22.0, None, None]
    assert trends(asked, table, (9e6, 9e6 + 60), most=9)["fp32",] == [20.0, None, 22.0]


ROWS: list[list[str | int | float | None]] = [
    [3000, "fp32", 2], [3900, "fp32", 4], [3300, "int8", 1],
]  # fmt: skip


def test_where_nothing_was_counted_amounts_are_0_and_quantiles_unknown() -> None:
    amounts = TelemetryTable(columns=["start_s", "variant", "rate"], rows=ROWS)
    asked = by_variant(step="5m", stat="rate")
    until_s = 4200 + REPORTED_S
    found = chart(asked, amounts, (3000, until_s), most=6)
    assert {line.name: [value for _, value in line.points] for line in found.lines} == {
        "fp32": [2, 0, 0, 4],
        "int8": [0, 1, 0, 0],
    }
    assert trends(asked, amounts, (3000, until_s), most=9)["int8",] == [0, 1, 0, 0, None]
    for metric, statistic in ((LATENCY, "p95"), ("temperature_c", "count"), ("unknown", "rate")):
        asked = TelemetryQuestion(metric=metric, by="variant", step="5m", stat=statistic)
        table = TelemetryTable(columns=["start_s", "variant", statistic], rows=ROWS)
        assert [len(line.points) for line in chart(asked, table, RANGE_S, most=6).lines] == [2, 1]
        assert trends(asked, table, RANGE_S, most=9)["int8",] == [None, 1, None, None, None]


def test_a_step_that_goes_on_is_no_fall() -> None:
    amounts = TelemetryTable(columns=["start_s", "variant", "rate"], rows=ROWS)
    asked = by_variant(step="5m", stat="rate")
    found = chart(asked, amounts, (3000, 4199 + REPORTED_S), most=6)
    assert {line.name: [value for _, value in line.points] for line in found.lines} == {
        "fp32": [2, 0, 0],
        "int8": [0, 1, 0],
    }
    assert trends(asked, amounts, (3000, 4199), most=9)["fp32",] == [2, 0, 0, None]
    only = TelemetryTable(columns=["start_s", "variant", "rate"], rows=ROWS[:1])
    assert chart(asked, only, (3000, 3001), most=6).lines[0].points == [(3000, 2)]
    assert trends(asked, only, (3000, 3001), most=9)["fp32",] == [2]
