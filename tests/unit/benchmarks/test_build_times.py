"""Build times: the time per model is compared, the totals stand beside it."""

from __future__ import annotations

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


def test_a_search_is_compared_per_model_and_told_in_all() -> None:
    each, *totals = beside_search("net", OURS, WHOLE, OLIVE)
    assert (each.value, each.peer_value, each.ratio) == (2.0, 2.0, 1.0)
    assert (each.aim, each.met) == ("ratio <= 0.5", False)
    assert [(row.value, row.peer_value, row.ratio, row.aim) for row in totals] == [
        (6.0, 24.0, None, ""),
        (42.0, 24.0, None, ""),
    ]
