"""The names of hooks, the order in which they run, and what an exit status means. Pure.

Rules:
- A name is `<State>_<Enter|Leave|Error>_<NN>[_words]`, as Mender's state scripts have it. It has
  no dot, so that a copy which an editor or a package manager leaves beside a hook is none.
- Hooks of one moment run by their number, those of the same number by their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from agent.install.states import State

LATER_STATUS: Final = 21
"""The exit status that delays an install; Mender's."""

SHAPE: Final = "<State>_<Enter|Leave|Error>_<NN>[_words]"
_STATES: Final = {state.value.capitalize(): state for state in State if state is not State.IDLE}
_NAME: Final = re.compile(
    rf"({'|'.join(_STATES)})_(Enter|Leave|Error)_([0-9]{{2}})(?:_[A-Za-z0-9_-]{{1,64}})?"
)


class Moment(StrEnum):
    """When a hook runs."""

    ENTER = "Enter"
    """Before the effect of its state."""

    LEAVE = "Leave"
    """After it."""

    ERROR = "Error"
    """After the state has failed."""


class Answer(Enum):
    """What a hook says about the install."""

    GO_ON = "go on"
    NO = "no"
    LATER = "later"


class Hook(NamedTuple):
    """A hook."""

    state: State
    moment: Moment
    number: int
    name: str
    """Of its file."""


def parse_name(name: str) -> Hook | None:
    """Return the hook that a file's name stands for.

    Args:
        name: Such as `Switching_Enter_10_camera`.

    Returns:
        The hook; None if it is no name of a hook.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Hook(_STATES[found[1]], Moment(found[2]), int(found[3]), name)


def hooks_of(hooks: Iterable[Hook], state: State, moment: Moment) -> tuple[Hook, ...]:
    """Return the hooks of one moment in the order in which they run.

    Args:
        hooks: All hooks.
        state: The state.
        moment: Whether it is entered, left or has failed.

    Returns:
        Those that run then.
    """
    found = [hook for hook in hooks if (hook.state, hook.moment) == (state, moment)]
    return tuple(sorted(found, key=lambda hook: (hook.number, hook.name)))


def answer_of(status: int) -> Answer:
    """Return what an exit status means.

    Args:
        status: The exit status.

    Returns:
        The answer. What is neither 0 nor 21 is a no: a hook that broke protects nothing.
    """
    if status == 0:
        return Answer.GO_ON
    return Answer.LATER if status == LATER_STATUS else Answer.NO
