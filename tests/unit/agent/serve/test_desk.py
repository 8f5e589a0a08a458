"""Threads that take turns with a worker: each gets its answer, or hears why not."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from agent.serve.desk import Desk, Waiter
from agent.serve.errors import (
    DeadlineError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerGoneError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.modes import Turn
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.errors import FleetError

CLOCK = SystemClock()
TURN = Turn(timeout_s=1.0, most=4)


class Worker:
    """Answers with the body that came, when it is let."""

    def __init__(self) -> None:
        self.turns: list[list[bytes]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fault: BaseException | None = None

    def converse(self, waiters: Sequence[Waiter], turn: Turn) -> None:
        assert turn is TURN
        self.turns.append([bytes(waiter.asked.body) for waiter in waiters])
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        for waiter in waiters:
            waiter.finish(Reply(status=200, headers={}, body=waiter.asked.body))


class Client(threading.Thread):
    """Asks once, in a thread of its own."""

    def __init__(self, desk: Desk, name: str, *, priority: int = 2, timeout_s: float = 1e6) -> None:
        super().__init__(daemon=True)
        self._desk = desk
        now_s = CLOCK.monotonic_s()
        self._waiter = Waiter(
            asked=Asked(header_length=None, body=memoryview(name.encode())),
            arrived_s=now_s,
            priority=priority,
            deadline_s=now_s + timeout_s,
        )
        self.answer = b""
        self.fault: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = bytes(self._desk.ask(self._waiter, TURN).body)
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            self.fault = exc

    def outcome(self) -> bytes | type[BaseException]:
        finished(self)
        return type(self.fault) if self.fault is not None else self.answer


def wait_for(desk: Desk, waiting: int) -> None:
    until(lambda: desk.waiting == waiting, f"{waiting} who wait", step_s=0.001)


def crowd(desk: Desk, worker: Worker, names: str) -> list[Client]:
    """Let the first client's turn begin, then the others come, in order."""
    clients = [Client(desk, names[0])]
    assert worker.begun.acquire(timeout=PATIENCE_S)
    for number, name in enumerate(names[1:], start=1):
        clients.append(Client(desk, name))
        wait_for(desk, number)
    return clients


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def desk(worker: Worker) -> Desk:
    return Desk(worker.converse, 8, CLOCK)


def test_those_who_wait_share_the_next_turn(desk: Desk, worker: Worker) -> None:
    clients = crowd(desk, worker, "abcdefg")
    for _ in range(3):
        worker.go.release()
    assert [client.outcome() for client in clients] == [name.encode() for name in "abcdefg"]
    assert worker.turns == [[b"a"], [b"b", b"c", b"d", b"e"], [b"f", b"g"]]


def test_an_idle_worker_is_asked_at_once(desk: Desk, worker: Worker) -> None:
    for name in "abc":
        worker.go.release()
        assert Client(desk, name).outcome() == name.encode()
    assert worker.turns == [[b"a"], [b"b"], [b"c"]]


def test_the_urgent_go_first_even_when_another_has_the_lead(desk: Desk, worker: Worker) -> None:
    first, *others = crowd(desk, worker, "abcde")
    urgent = Client(desk, "u", priority=1)
    wait_for(desk, 5)
    for _ in range(3):
        worker.go.release()
    assert [client.outcome() for client in (first, urgent, *others)] == [
        *(b"a", b"u", b"b", b"c", b"d", b"e"),
    ]
    assert worker.turns == [[b"a"], [b"u", b"b", b"c", b"d"], [b"e"]]


def test_the_least_urgent_makes_place(worker: Worker) -> None:
    desk = Desk(worker.converse, 1, CLOCK)
    first = crowd(desk, worker, "a")[0]
    low = Client(desk, "l", priority=5)
    wait_for(desk, 1)
    assert Client(desk, "m", priority=5).outcome() is WorkerBusyError
    usual = Client(desk, "n")
    assert low.outcome() is WorkerBusyError
    worker.go.release(2)
    assert [first.outcome(), usual.outcome()] == [b"a", b"n"]


def test_whose_time_passes_is_told_while_the_worker_is_busy(desk: Desk, worker: Worker) -> None:
    first, other = crowd(desk, worker, "ab")
    short = Client(desk, "s", timeout_s=0.05)
    assert short.outcome() is DeadlineError
    assert Client(desk, "n", timeout_s=0.0).outcome() is DeadlineError
    worker.go.release(2)
    assert [first.outcome(), other.outcome()] == [b"a", b"b"]
    assert worker.turns == [[b"a"], [b"b"]]


@pytest.mark.parametrize("fault", [WorkerCrashedError("crash"), WorkerTimeoutError("hang")])
def test_a_crash_is_told_to_those_who_met_it_and_the_others_may_go_elsewhere(
    desk: Desk, worker: Worker, fault: FleetError
) -> None:
    clients = crowd(desk, worker, "abc")
    worker.fault = fault
    worker.go.release()
    assert [client.outcome() for client in clients] == [
        *(type(fault), WorkerGoneError, WorkerGoneError)
    ]
    assert str(clients[1].fault) == fault.message
    assert Client(desk, "d").outcome() is WorkerGoneError


def test_a_fault_of_ours_leaves_nobody_waiting(desk: Desk, worker: Worker) -> None:
    clients = crowd(desk, worker, "abc")
    worker.fault = ZeroDivisionError()
    worker.go.release()
    assert [client.outcome() for client in clients] == [
        *(ZeroDivisionError, WorkerGoneError, WorkerGoneError)
    ]


def test_a_closed_desk_sends_everyone_away(desk: Desk, worker: Worker) -> None:
    first, *others = crowd(desk, worker, "abc")
    desk.close("the worker was stopped")
    assert [client.outcome() for client in others] == [WorkerGoneError, WorkerGoneError]
    worker.go.release()
    assert first.outcome() == b"a"
    assert Client(desk, "d").outcome() is WorkerGoneError


def test_a_turn_waits_for_company_only_as_long_as_it_may(worker: Worker) -> None:
    company = Turn(timeout_s=1.0, most=2, company_s=1e6)
    turns: list[int] = []

    def converse(waiters: Sequence[Waiter], turn: Turn) -> None:
        turns.append(len(waiters))
        for waiter in waiters:
            waiter.finish(Reply(status=200, headers={}, body=waiter.asked.body))

    desk = Desk(converse, 8, CLOCK)

    def ask(turn: Turn) -> None:
        asked = Asked(header_length=None, body=memoryview(b"x"))
        desk.ask(Waiter(asked=asked, arrived_s=CLOCK.monotonic_s()), turn)

    threads = [threading.Thread(target=ask, args=(company,), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    assert turns == [2]
    ask(Turn(timeout_s=1.0, most=2, company_s=0.01))
    assert turns == [2, 1]


def test_many_threads_are_all_answered() -> None:
    served: list[int] = []

    def converse(waiters: Sequence[Waiter], turn: Turn) -> None:
        served.append(len(waiters))
        for waiter in waiters:
            waiter.finish(Reply(status=200, headers={}, body=waiter.asked.body))

    desk = Desk(converse, 64, CLOCK)
    wrong: list[object] = []

    def ask(name: bytes) -> None:
        for number in range(200):
            body = name + str(number).encode()
            waiter = Waiter(
                asked=Asked(header_length=None, body=memoryview(body)),
                arrived_s=CLOCK.monotonic_s(),
                priority=1 + number % 9,
                deadline_s=CLOCK.monotonic_s() + PATIENCE_S,
            )
            if bytes(desk.ask(waiter, TURN).body) != body:
                wrong.append(body)

    threads = [threading.Thread(target=ask, args=(b"t%d-" % n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    assert wrong == []
    assert sum(served) == 8 * 200
