"""Which names are those of hooks, in which order they run, and what an exit status says."""

from __future__ import annotations

import random

import pytest

from agent.install.hooks.names import Answer, Moment, answer_of, hooks_of, parse_name
from agent.install.states import State


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("state", [each for each in State if each is not State.IDLE])
def test_every_state_with_an_effect_has_hooks_of_each_moment(state: State, moment: Moment) -> None:
    hook = parse_name(f"{state.value.capitalize()}_{moment}_07_to-say_it")
    assert hook is not None
    assert (hook.state, hook.moment, hook.number) == (state, moment, 7)


@pytest.mark.parametrize(
    "name",
    [
        "Idle_Enter_00", "Swiching_Enter_00", "switching_Enter_00", "Switching_enter_00",
        "Switching_Enter", "Switching_Enter_1", "Switching_Enter_100", "Switching_Enter_00.sh",
        "Switching_Enter_00_a.dpkg-old", "Switching_Enter_00_a~", "Switching_Enter_00_",
        ".Switching_Enter_00.swp", "README", "", "Switching_Enter_00\n", "Switching_Enter_0\u0660",
        f"Switching_Enter_00_{'x' * 65}",
    ],
)  # fmt: skip
def test_no_other_name_is_one_of_a_hook(name: str) -> None:
    assert parse_name(name) is None


def test_hooks_run_by_number_and_then_by_name() -> None:
    names = ["Probing_Leave_02", "Probing_Leave_10_a", "Probing_Leave_10_b", "Probing_Leave_99"]
    others = ["Probing_Enter_00", "Staging_Leave_00", "Probing_Error_00"]
    hooks = [hook for name in names + others if (hook := parse_name(name))]
    random.Random(7).shuffle(hooks)
    assert [hook.name for hook in hooks_of(hooks, State.PROBING, Moment.LEAVE)] == names


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (0, Answer.GO_ON), (1, Answer.NO), (2, Answer.NO), (20, Answer.NO), (21, Answer.LATER),
        (22, Answer.NO), (126, Answer.NO), (127, Answer.NO), (255, Answer.NO),
    ],
)  # fmt: skip
def test_every_status_but_zero_and_later_is_a_no(status: int, answer: Answer) -> None:
    assert answer_of(status) is answer
