"""All groups of a rule at one moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telemetry.server.alerts.judging import MAX_ALERTS, Answer, Group, judge
from telemetry.server.alerts.rules import Limits
from telemetry.server.alerts.states import Phase, State

Values = dict[Group, float | None]
HOT = Limits(above=85.0)
FIRING = State(phase=Phase.FIRING, since_s=10.0, value=90.0)


def test_only_what_is_wrong_is_kept() -> None:
    verdict = judge(HOT, {}, Answer({("a",): 90.0, ("b",): 20.0, ("c",): None}), 60.0)
    assert [(each.group, each.state.phase) for each in verdict.groups] == [(("a",), Phase.FIRING)]


def test_a_group_without_a_value_stays_unless_there_are_no_others() -> None:
    (kept,) = judge(HOT, {("a",): FIRING}, Answer({}), 60.0).groups
    assert (kept.state.phase, kept.transition) == (Phase.FIRING, None)
    (gone,) = judge(HOT, {("a",): FIRING}, Answer({}, is_whole=True), 60.0).groups
    assert gone.state.phase is Phase.RESOLVED


def test_too_many_alerts_are_left_out_and_counted() -> None:
    known: dict[Group, State] = {("z",): FIRING}
    values: Values = {(f"{n:05}",): 90.0 for n in range(MAX_ALERTS + 5)}
    verdict = judge(HOT, known, Answer(values | {("z",): 90.0}), 60.0)
    assert (len(verdict.groups), verdict.left_out) == (MAX_ALERTS, 6)
    assert verdict.groups[0].group == ("z",)
    assert verdict.groups[-1].group == (f"{MAX_ALERTS - 2:05}",)


def test_what_was_resolved_takes_no_place() -> None:
    resolved = State(phase=Phase.RESOLVED, since_s=10.0, value=1.0)
    known: dict[Group, State] = {(f"r{n}",): resolved for n in range(MAX_ALERTS)}
    assert judge(HOT, known, Answer({("new",): 90.0}), 60.0).left_out == 0


@given(
    st.dictionaries(
        st.tuples(st.text(max_size=3)), st.one_of(st.none(), st.floats(0, 200)), max_size=8
    )
)
def test_groups_do_not_touch_each_other(values: Values) -> None:
    together = judge(HOT, {}, Answer(values), 60.0).groups
    alone = [
        each
        for group, value in values.items()
        for each in judge(HOT, {}, Answer({group: value}), 60.0).groups
    ]
    assert sorted(together, key=lambda each: each.group) == sorted(
        alone, key=lambda each: each.group
    )
