"""Goals: how they are written, what they drop, and which candidate is the best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import BuildError
from packager.search.choice import TOLERANCES, best, in_order, loss
from packager.search.goals import (
    ACCURACY,
    DEFAULT_GOALS,
    LATENCY,
    WORDS,
    Change,
    Goal,
    missed,
    read_goal,
    read_goals,
)

shares = st.floats(-0.9, 3.0, allow_nan=False)
percents = st.integers(0, 999).map(lambda tenths: tenths / 10)


@st.composite
def all_goals(draw: st.DrawFn) -> tuple[Goal, ...]:
    metrics = draw(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, unique=True))
    limits = st.none() | percents.map(lambda p: p / 100) | percents.map(lambda p: -p / 100)
    return tuple(Goal(metric=metric, most_loss=draw(limits)) for metric in metrics)


found = st.dictionaries(
    st.sampled_from(sorted(WORDS)), shares.map(lambda share: Change(share, share))
)
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
    assert goal.metric in WORDS


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
        most = (1 + least) * (1 + TOLERANCES[first]) - 1
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
