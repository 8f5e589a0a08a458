from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from controller.cli.repeating import PATIENCE_S, Page, draw, repeated
from controller.client.errors import UnreachableError
from tests.simulators.clock import FakeClock


def scripted(*steps: str | Exception) -> Callable[[], str]:
    remaining: Iterator[str | Exception] = iter(steps)

    def fetch() -> str:
        step = next(remaining)
        if isinstance(step, Exception):
            raise step
        return step

    return fetch


def test_each_answer_comes_after_a_while() -> None:
    clock = FakeClock()
    assert list(islice(repeated(scripted("a", "b", "c"), 10.0, clock=clock), 3)) == ["a", "b", "c"]
    assert clock.slept_s == [10.0, 10.0]


def test_a_wrong_address_is_told_at_once() -> None:
    with pytest.raises(UnreachableError):
        next(repeated(scripted(UnreachableError("no controller")), 10.0, clock=FakeClock()))


def test_a_controller_that_comes_back_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    away = UnreachableError("no controller answers")
    found = repeated(scripted("a", away, away, "b"), 10.0, clock=FakeClock())
    assert list(islice(found, 2)) == ["a", "b"]
    assert capsys.readouterr().err == "fleet: no controller answers; waiting for it\n"


def test_patience_ends() -> None:
    clock = FakeClock()
    away = [UnreachableError("no controller answers")] * 20
    found = repeated(scripted("a", *away), 10.0, clock=clock)
    with pytest.raises(UnreachableError):
        list(found)
    assert PATIENCE_S < sum(clock.slept_s) < PATIENCE_S + 40


def test_through_a_pipe_answers_follow_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    draw(iter([Page(["a", "b"], []), Page([], ["nothing"]), Page(["c"], [])]))
    told = capsys.readouterr()
    assert (told.out, told.err) == ("a\nb\n\nc\n", "nothing\n")
