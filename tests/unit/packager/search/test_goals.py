"""Goals: how they are written, what they drop, and which candidate is the best."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import BuildError
from packager.judge.further import read_further
from packager.search.choice import TOLERANCES, best, in_order, loss
from packager.search.goals import (
    DEFAULT_GOALS,
    Change,
    Goal,
    changes,
    missed,
    read_goal,
    read_goals,
)
from packager.search.judged import ACCURACY, COSTS, LATENCY, MAIN, judged
from wire.package.accuracy import Accuracy, FurtherAccuracy
from wire.package.variant import Variant, VariantInfo

METRICS = (ACCURACY, *COSTS)

shares = st.floats(-0.9, 3.0, allow_nan=False)
percents = st.integers(0, 999).map(lambda tenths: tenths / 10)


@st.composite
def all_goals(draw: st.DrawFn) -> tuple[Goal, ...]:
    metrics = draw(st.lists(st.sampled_from(METRICS), min_size=1, unique=True))
    limits = st.none() | percents.map(lambda p: p / 100) | percents.map(lambda p: -p / 100)
    return tuple(Goal(metric=metric, most_loss=draw(limits)) for metric in metrics)


found = st.dictionaries(st.sampled_from(METRICS), shares.map(lambda share: Change(share, share)))
candidates = st.dictionaries(st.sampled_from("abcdef"), found, min_size=1)


@given(all_goals())
def test_a_goal_reads_as_it_is_written(goals: tuple[Goal, ...]) -> None:
    for goal in goals:
        again = read_goal(goal.text)
        assert again.metric == goal.metric
        assert again.most_loss == pytest.approx(goal.most_loss)


def test_the_words_say_which_way_is_meant() -> None:
    assert read_goal("accuracy: at most 1% worse").most_loss == 0.01
    assert read_goal("latency: at least 20 % faster").most_loss == -0.2
    assert read_goal("size").most_loss is None
    assert read_goals(()) == DEFAULT_GOALS


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "there is no metric ''"),
        ("speed: at most 1% worse", "there is no metric 'speed'"),
        ("latency:", "the limit after the colon is missing"),
        ("latency: fast", "'fast' is not a limit"),
        ("latency: at least 20 faster", "'at least 20 faster' is not a limit"),
        ("latency: more than 20% faster", "'more than' is neither 'at most' nor 'at least'"),
        ("latency: at least -20% faster", "'-20' is not a number from 0 to 1000"),
        ("latency: at least nan% faster", "'nan' is not a number from 0 to 1000"),
        ("latency: at most 1001% slower", "'1001' is not a number from 0 to 1000"),
        ("latency: at least 20% slower", "after 'at least' the last word is 'slower', not 'fast"),
        ("accuracy: at most 1% slower", "after 'at most' the last word is 'slower', not 'worse'"),
        ("latency: at least 100% faster", "nothing is 100% faster"),
    ],
)
def test_a_goal_that_cannot_be_read_names_the_part_at_fault(text: str, fault: str) -> None:
    with pytest.raises(BuildError) as caught:
        read_goal(text)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_goals_of_one_metric_are_refused() -> None:
    with pytest.raises(BuildError, match="two goals are of latency"):
        read_goals(("latency", "latency: at most 5% slower"))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        goal = read_goal(text)
    except BuildError:
        return
    assert goal.metric in METRICS or goal.written == "auto"


@given(all_goals(), found)
def test_a_goal_is_missed_exactly_if_a_known_figure_is_over_its_limit(
    goals: tuple[Goal, ...], changes: dict[str, Change]
) -> None:
    over = [
        goal
        for goal in goals
        if goal.most_loss is not None
        and goal.metric in changes
        and changes[goal.metric].low > goal.most_loss + 1e-9
    ]
    miss = missed(goals, changes)
    assert (miss is not None) == bool(over)
    if miss is not None:
        assert over[0].text in miss[0]
        assert miss[1] > 0


def test_a_latency_that_is_not_sure_drops_nothing() -> None:
    goal = read_goal("latency: at least 20% faster")
    assert missed((goal,), {LATENCY: Change(-0.1, -0.3)}) is None
    assert missed((goal,), {LATENCY: Change(-0.1, -0.15)}) is not None


@given(all_goals(), candidates)
def test_the_best_keeps_all_limits_and_none_is_better_in_the_first_goal(
    goals: tuple[Goal, ...], known: dict[str, dict[str, Change]]
) -> None:
    able = {name for name, changes in known.items() if missed(goals, changes) is None}
    chosen = best(goals, known)
    assert (chosen in able) if able else chosen is None
    if chosen is not None:
        first = in_order(goals)[0].metric
        least = min(loss(first, known[name]) for name in able)
        most = (1 + least) * (1 + TOLERANCES.get(first, 0.0)) - 1
        assert loss(first, known[chosen]) <= max(most, least)


@given(all_goals(), candidates)
def test_what_misses_a_limit_never_changes_the_choice(
    goals: tuple[Goal, ...], known: dict[str, dict[str, Change]]
) -> None:
    able = {n: changes for n, changes in known.items() if missed(goals, changes) is None}
    assert best(goals, known) == best(goals, able)


def test_a_limit_says_what_is_enough() -> None:
    known = {
        "exact": {ACCURACY: Change(0.0, 0.0), LATENCY: Change(0.0, 0.0)},
        "fast": {ACCURACY: Change(0.009, 0.009), LATENCY: Change(-0.5, -0.5)},
        "wrong": {ACCURACY: Change(0.02, 0.02), LATENCY: Change(-0.9, -0.9)},
    }
    assert best(read_goals(("accuracy: at most 1% worse", "latency")), known) == "fast"
    assert best(read_goals(("accuracy", "latency")), known) == "exact"
    assert best(read_goals(("latency", "accuracy")), known) == "wrong"
    both = read_goals(("accuracy: at most 1% worse", "latency: at least 20% faster"))
    assert best(both, known) == "fast"


HEADS = read_further(("net/out:0=mae", "depth=rmse,labels=depths,min-retention=0.9", "depth=rmse"))


def judged_by(main: float, *others: float) -> Variant:
    """Return a variant that keeps such shares by the first and by each further metric."""
    further = tuple(
        FurtherAccuracy(
            output=one.output, metric=name, labels=one.labels, value=kept, reference=1.0,
            retention=kept, worst_error=0.0, samples=10,
        )
        for one, name, kept in zip(HEADS, ("mae", "rmse", "rmse"), others, strict=False)
    )  # fmt: skip
    accuracy = Accuracy(
        metric="top1", value=main, reference=1.0, retention=main, agreement=None, sqnr_db=None,
        worst_error=0.0, samples=10, further=further or msgspec.UNSET,
    )  # fmt: skip
    info = VariantInfo(
        runtime="onnxruntime", precision="int8", model_file="model.onnx", inputs=(), outputs=(),
        size_bytes=100, accuracy=accuracy,
    )  # fmt: skip
    return Variant(name="int8", directory="variants/int8", info=info)


def test_accuracy_is_about_every_metric_and_says_by_which_a_limit_is_missed() -> None:
    found = changes(judged_by(1.0, 0.97, 0.995, 1.0), judged_by(1.0, 1.0, 1.0, 1.0), timed=False)
    miss = missed(read_goals(("accuracy: at most 1% worse",), judged("top1", HEADS)), found)
    assert miss is not None
    assert miss[0].endswith("is missed: it is 3.00% worse by net/out:0=mae")
    assert missed(read_goals(("accuracy: at most 3% worse",)), found) is None


@pytest.mark.parametrize(
    ("name", "lost"),
    [("top1", 0.0), ("net/out:0=mae", 0.03), ("depth=rmse,labels=depths", 0.005)],
)
def test_a_goal_may_name_one_metric(name: str, lost: float) -> None:
    found = changes(judged_by(1.0, 0.97, 0.995, 1.0), judged_by(1.0, 1.0, 1.0, 1.0), timed=False)
    goal = read_goal(f"{name}: at most 2% worse", judged("top1", HEADS))
    assert goal.text == f"{name}: at most 2% worse"
    assert found[goal.metric].value == pytest.approx(lost)
    assert (missed((goal,), found) is not None) == (lost > 0.02)
    assert read_goal(name, judged("top1", HEADS)).metric == goal.metric


def test_with_one_metric_its_name_means_accuracy() -> None:
    assert read_goal("top1", judged("top1")).metric == ACCURACY
    assert read_goal("f:own: at most 1% worse", judged("f:own")).metric == ACCURACY
    assert read_goal("top1", judged("top1", HEADS)).metric == MAIN
    assert read_goal("out=mae", judged("mae,output=out", HEADS)).metric == MAIN
    with pytest.raises(BuildError, match="two goals are of"):
        read_goals(("accuracy", "top1"), judged("top1"))


def test_a_goal_of_what_is_not_judged_names_what_is() -> None:
    with pytest.raises(BuildError) as caught:
        read_goal("boxes=mae: at most 1% worse", judged("top1", HEADS))
    assert "there is no metric 'boxes=mae'" in caught.value.message
    names = "accuracy, latency, memory, size, top1, net/out:0=mae, depth=rmse,labels=depths"
    assert caught.value.remedy == f"use {names}, depth=rmse, or add a --metric that judges it"


def test_a_name_that_two_metrics_have_is_refused() -> None:
    two = read_further(("depth=rmse,labels=near", "depth=rmse,labels=far"))
    with pytest.raises(BuildError, match="'depth=rmse' can be several metrics"):
        read_goal("depth=rmse", judged("top1", two))
    assert read_goal("depth=rmse", judged("top1", two[:1])).metric == "depth=rmse,labels=near"
    assert read_goal("depth=rmse", judged("top1", HEADS)).metric == "depth=rmse"


def test_what_is_above_the_reference_by_any_metric_is_chance() -> None:
    known = {"a": {"x=mae": Change(-0.2, -0.2)}, "b": {"x=mae": Change(0.0, 0.0)}}
    assert loss("x=mae", known["a"]) == loss("x=mae", known["b"]) == 0.0
