"""The thread that runs what may wait: when it does, and what it does with each outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.serve.deferred.queue import DeferredQueue, Found
from agent.serve.deferred.runner import DeferredRunner
from agent.serve.deferred.settings import DeferredSettings
from agent.serve.deferred.store import DeferredStore
from agent.serve.errors import NotServingError, WorkerBusyError, WorkerCrashedError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from tests.simulators.device import Heard
from tests.simulators.patience import PATIENCE_S, until
from wire.clock import SystemClock


class Router:
    """Answers with the body, or as a test says."""

    def __init__(self) -> None:
        self.is_idle = True
        self.calls: list[InferenceCall] = []
        self.replies: list[Reply | Exception] = []
        self.gate = threading.Event()
        self.gate.set()

    def handle(self, call: InferenceCall) -> Reply:
        self.calls.append(call)
        assert self.gate.wait(PATIENCE_S)
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, Exception):
            raise reply
        return reply or Reply(status=200, headers={}, body=call.body)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.router, self.heard, self.may_run = Router(), Heard([], []), True
        store = DeferredStore(directory, 10_000, self.heard)
        self.queue = DeferredQueue(DeferredSettings(), store, self.heard, SystemClock())
        self.runner = DeferredRunner(self.queue, self.router, lambda: self.may_run)
        self.runner.start()

    def accept(self, *, durable: bool = False) -> str:
        call = InferenceCall(
            model="digits", version=None, header_length=None, body=memoryview(b"x"), priority=1,
            timeout_s=600.0,
        )  # fmt: skip
        return self.queue.accept(call, durable=durable)

    def answer(self, ticket: str) -> Reply:
        def found() -> Found | None:
            known = self.queue.find(ticket)
            assert known is not None
            return known if known.reply is not None else None

        reply = until(found, "an answer").reply
        assert reply is not None
        return reply

    def refuse(self, code: str, status: int = 503) -> None:
        body = memoryview(b"refused")
        self.router.replies.append(Reply(status=status, headers={}, body=body, code=code))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.router.gate.set()
    rig.runner.stop()
    rig.runner.join()


def test_what_waits_runs_after_all_others_and_without_a_deadline(rig: Rig) -> None:
    assert bytes(rig.answer(rig.accept()).body) == b"x"
    (call,) = rig.router.calls
    assert (call.deferrable, call.timeout_s) == (True, None)


def test_nothing_runs_while_a_lever_or_another_request_is_in_the_way(rig: Rig) -> None:
    rig.may_run = False
    ticket = rig.accept()
    assert rig.queue.wait(0.0)
    rig.router.is_idle, rig.may_run = False, True
    assert rig.router.calls == []
    rig.router.is_idle = True
    assert rig.answer(ticket).status == 200


@pytest.mark.parametrize("code", [WorkerBusyError.code, NotServingError.code])
def test_a_busy_or_absent_worker_is_asked_again(rig: Rig, code: str) -> None:
    rig.refuse(code)
    rig.refuse(code)
    assert rig.answer(rig.accept()).status == 200
    assert len(rig.router.calls) == 3


@pytest.mark.parametrize(("status", "told"), [(400, 400), (404, 410), (413, 413), (500, 500)])
def test_any_other_outcome_is_the_answer(rig: Rig, status: int, told: int) -> None:
    rig.refuse("", status)
    assert rig.answer(rig.accept()).status == told
    assert len(rig.router.calls) == 1


def test_a_request_that_crashes_workers_is_not_tried_again(rig: Rig) -> None:
    rig.refuse(WorkerCrashedError.code)
    assert rig.answer(rig.accept()).status == 503
    assert len(rig.router.calls) == 1


def test_a_fault_of_ours_ends_neither_the_thread_nor_the_request(rig: Rig) -> None:
    rig.router.replies.append(RuntimeError("a bug"))
    assert rig.answer(rig.accept()).status == 500
    assert rig.answer(rig.accept()).status == 200


def test_what_a_stop_cuts_short_waits_again(rig: Rig) -> None:
    rig.router.gate.clear()
    ticket = rig.accept(durable=True)
    until(lambda: rig.router.calls, "the run")
    rig.refuse(WorkerCrashedError.code)
    rig.runner.stop()
    rig.router.gate.set()

    def waits() -> bool:
        found = rig.queue.find(ticket)
        return found is not None and found.state == "waiting"

    until(waits, "the request again")
