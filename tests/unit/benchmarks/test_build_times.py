"""Build times: equal work is compared, the totals stand beside it."""

from __future__ import annotations

import pytest

from benchmarks.harness import Row
from benchmarks.quantizers.build_times import Work, beside_one, beside_search

OURS = Work("ONNX Runtime", 6.0, 3)
WHOLE = Work("all runtimes", 42.0, 14)
OLIVE = Work("Olive", 24.0, 12)


def test_a_tool_that_makes_one_model_is_compared_per_model() -> None:
    each, total = beside_one("net", WHOLE, Work("NNCF", 6.0, 1))
    assert (each.name, each.unit) == (
        "net: build for all runtimes, 14 models, per model",
        "s per model",
    )
    assert (each.value, each.peer_value, each.ratio) == (3.0, 6.0, 0.5)
    assert (each.peer, each.aim) == ("NNCF, 1 model", "")
    assert (total.value, total.peer_value, total.ratio) == (42.0, 6.0, None)


def test_a_search_is_compared_per_model_and_for_as_many_models() -> None:
    each, same, *totals = beside_search("net", OURS, WHOLE, OLIVE, Work("Olive", 15.0, 3))
    assert (each.value, each.peer_value, each.ratio) == (2.0, 2.0, 1.0)
    assert (each.aim, each.met) == ("ratio <= 0.5", False)
    assert same.name == "net: build of 3 models for ONNX Runtime"
    assert (same.value, same.peer_value, same.ratio, same.met) == (6.0, 15.0, 0.4, True)
    assert [(row.value, row.peer_value, row.ratio, row.aim) for row in totals] == [
        (6.0, 24.0, None, ""),
        (42.0, 24.0, None, ""),
    ]


@pytest.mark.parametrize(
    ("small", "why"),
    [
        (Work("Olive", 9.0, 4), "not run: ONNX Runtime, 3 models; Olive, 4 models"),
        ("it failed", "not run: it failed"),
    ],
)
def test_another_number_of_models_is_not_compared(small: Work | str, why: str) -> None:
    row: Row = beside_search("net", OURS, WHOLE, OLIVE, small)[1]
    assert (row.value, row.ratio, row.met, row.spread) == (None, None, None, why)
