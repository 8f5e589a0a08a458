"""A worker goes on whatever happens, says so once, and ends when it is told to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from controller.errors import CollectorError
from controller.exporting.worker import Worker
from tests.simulators.patience import PATIENCE_S

OFTEN_S = 0.001


def worker(work: Callable[[], bool], interrupt: Callable[[], None] = lambda: None) -> Worker:
    return Worker("exports", "sending", work, OFTEN_S, interrupt)


def test_it_works_again_and_again_until_it_is_stopped() -> None:
    done, often = [], threading.Event()

    def work() -> bool:
        done.append(1)
        if len(done) == 5:
            often.set()
        return False

    made = worker(work)
    made.start()
    assert often.wait(PATIENCE_S)
    made.stop(PATIENCE_S)
    number = len(done)
    made.stop(PATIENCE_S)
    assert len(done) == number


def test_it_goes_on_at_once_while_there_is_more() -> None:
    left = [True, True, False, True]
    worker(lambda: left.pop(0)).pass_once()
    assert left == [True]


def test_a_fault_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    faults: list[Exception | None] = [CollectorError("away"), CollectorError("away"), None, None]

    def work() -> bool:
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return False

    made = worker(work)
    for _ in range(4):
        made.pass_once()
    assert [record.message for record in caplog.records] == [
        "sending is tried again: away",
        "sending goes on",
    ]


def test_who_asks_to_be_left_alone_is_left_alone_once() -> None:
    faults = [CollectorError("busy", retry_after_s=120), CollectorError("busy"), None]

    def work() -> bool:
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return False

    made, pauses = worker(work), []
    for _ in range(3):
        made.pass_once()
        pauses.append(made.pause_s)
    assert pauses == [120, OFTEN_S, OFTEN_S]


def test_a_mistake_of_ours_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answers = [ZeroDivisionError(), None]

    def work() -> bool:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return False

    made = worker(work)
    made.pass_once()
    made.pass_once()
    assert "sending failed; it is tried again" in caplog.text


def test_work_that_waits_for_others_is_interrupted() -> None:
    waits, interrupted = threading.Event(), threading.Event()

    def work() -> bool:
        waits.set()
        assert interrupted.wait(PATIENCE_S)
        raise CollectorError("stopped")

    made = worker(work, interrupted.set)
    made.start()
    assert waits.wait(PATIENCE_S)
    made.stop(PATIENCE_S)
    assert interrupted.is_set()


def test_it_can_be_stopped_before_it_was_started() -> None:
    worker(lambda: False).stop(PATIENCE_S)
