"""Threads that take turns with a worker: each gets its answer, or hears why not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from agent.serve.errors import (
    DeadlineError,
    TooManySamplesError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerGoneError,
    WorkerShedError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.request_queue import QueuedRequest
from agent.serve.scheduler import Scheduler
from agent.serve.settings import Turn
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.errors import FleetError

CLOCK = FakeClock()
"""Stands still: how many share a turn depends on what one took."""

TURN = Turn(timeout_s=1.0, max_batch=4)


class Runs:
    """A worker that answers each turn with a function."""

    def __init__(self, run: Callable[[Sequence[Asked], Turn], Iterable[Reply]]) -> None:
        self._run = run
        self._given: deque[Sequence[Asked]] = deque()
        self._held = threading.Lock()

    @property
    def waiting(self) -> int:
        """Turns that were given and not answered."""
        return len(self._given)

    def hold(self) -> None:
        assert self._held.acquire(timeout=PATIENCE_S)

    def let_go(self) -> None:
        self._given.clear()
        self._held.release()

    def give(self, requests: Sequence[Asked], _turn: Turn) -> None:
        assert self._held.locked()
        self._given.append(requests)

    def take(self, turn: Turn) -> Sequence[Reply] | None:
        replies = list(self._run(self._given[0], turn))
        self._given.popleft()
        return replies


class Worker(Runs):
    """Answers with the body that came, when it is let."""

    def __init__(self) -> None:
        super().__init__(self.infer)
        self.turns: list[list[bytes]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fault: BaseException | None = None
        self.clock = FakeClock()
        """Goes on by 5 ms with each turn."""

    def infer(self, requests: Sequence[Asked], turn: Turn) -> Iterator[Reply]:
        assert turn is TURN
        self.turns.append([bytes(asked.body) for asked in requests])
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        self.clock.sleep(0.005)
        yield from echoes(requests)


def echoes(requests: Sequence[Asked]) -> Iterator[Reply]:
    for place, asked in reversed(list(enumerate(requests))):
        yield Reply(status=200, headers={}, body=asked.body, place=place)


class Client(threading.Thread):
    """Asks once, in a thread of its own."""

    def __init__(
        self, scheduler: Scheduler, name: str, *, priority: int = 2, timeout_s: float = 1e6
    ) -> None:
        super().__init__(daemon=True)
        self._scheduler = scheduler
        now_s = CLOCK.monotonic_s()
        self._request = QueuedRequest(
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
            self.answer = bytes(self._scheduler.answer(self._request, TURN).body)
        except BaseException as exc:  # noqa: BLE001 - looked at by the test
            self.fault = exc

    def outcome(self) -> bytes | type[BaseException]:
        finished(self)
        return type(self.fault) if self.fault is not None else self.answer


def wait_for(scheduler: Scheduler, waiting: int) -> None:
    until(lambda: scheduler.waiting == waiting, f"{waiting} who wait", step_s=0.001)


def crowd(scheduler: Scheduler, worker: Worker, names: str) -> list[Client]:
    """Let the first client's turn begin, then the others come, in order."""
    clients = [Client(scheduler, names[0])]
    assert worker.begun.acquire(timeout=PATIENCE_S)
    for number, name in enumerate(names[1:], start=1):
        clients.append(Client(scheduler, name))
        wait_for(scheduler, number)
    return clients


def crowd_after(scheduler: Scheduler, worker: Worker, names: str) -> list[Client]:
    """Do as `crowd` does after a first request."""
    assert worker.begun.acquire(timeout=PATIENCE_S)
    return crowd(scheduler, worker, names)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def scheduler(worker: Worker) -> Scheduler:
    return Scheduler(worker, 8, CLOCK)


def test_those_who_wait_share_the_next_turn(scheduler: Scheduler, worker: Worker) -> None:
    clients = crowd(scheduler, worker, "abcdefg")
    for _ in range(3):
        worker.go.release()
    assert [client.outcome() for client in clients] == [name.encode() for name in "abcdefg"]
    assert worker.turns == [[b"a"], [b"b", b"c", b"d", b"e"], [b"f", b"g"]]


def test_an_idle_worker_is_asked_at_once(scheduler: Scheduler, worker: Worker) -> None:
    for name in "abc":
        worker.go.release()
        assert Client(scheduler, name).outcome() == name.encode()
    assert worker.turns == [[b"a"], [b"b"], [b"c"]]


def test_the_urgent_go_first_even_when_another_has_the_lead(
    scheduler: Scheduler, worker: Worker
) -> None:
    first, *others = crowd(scheduler, worker, "abcde")
    urgent = Client(scheduler, "u", priority=1)
    wait_for(scheduler, 5)
    for _ in range(3):
        worker.go.release()
    assert [client.outcome() for client in (first, urgent, *others)] == [
        *(b"a", b"u", b"b", b"c", b"d", b"e"),
    ]
    assert worker.turns == [[b"a"], [b"u", b"b", b"c", b"d"], [b"e"]]


def test_the_least_urgent_makes_place(worker: Worker) -> None:
    scheduler = Scheduler(worker, 1, CLOCK)
    first = crowd(scheduler, worker, "a")[0]
    low = Client(scheduler, "l", priority=5)
    wait_for(scheduler, 1)
    assert Client(scheduler, "m", priority=5).outcome() is WorkerBusyError
    usual = Client(scheduler, "n")
    assert low.outcome() is WorkerShedError
    worker.go.release(2)
    assert [first.outcome(), usual.outcome()] == [b"a", b"n"]


def test_whose_time_passes_is_told_while_the_worker_is_busy(
    scheduler: Scheduler, worker: Worker
) -> None:
    first, other = crowd(scheduler, worker, "ab")
    short = Client(scheduler, "s", timeout_s=0.05)
    assert short.outcome() is DeadlineError
    assert Client(scheduler, "n", timeout_s=0.0).outcome() is DeadlineError
    worker.go.release(2)
    assert [first.outcome(), other.outcome()] == [b"a", b"b"]
    assert worker.turns == [[b"a"], [b"b"]]


@pytest.mark.parametrize("fault", [WorkerCrashedError("crash"), WorkerTimeoutError("hang")])
def test_a_crash_is_told_to_those_who_met_it_and_the_others_may_go_elsewhere(
    scheduler: Scheduler, worker: Worker, fault: FleetError
) -> None:
    clients = crowd(scheduler, worker, "abc")
    worker.fault = fault
    worker.go.release()
    assert [client.outcome() for client in clients] == [
        *(type(fault), WorkerGoneError, WorkerGoneError)
    ]
    assert str(clients[1].fault) == fault.message
    assert Client(scheduler, "d").outcome() is WorkerGoneError


def test_the_next_turn_is_sent_while_another_runs(worker: Worker) -> None:
    scheduler = Scheduler(worker, 8, worker.clock)
    worker.go.release()
    assert Client(scheduler, "first").outcome() == b"first"
    clients = crowd_after(scheduler, worker, "abc")
    until(lambda: worker.waiting == 2, "a turn that is sent ahead")
    worker.go.release(3)
    assert [client.outcome() for client in clients] == [b"a", b"b", b"c"]
    assert worker.turns == [[b"first"], [b"a"], [b"b"], [b"c"]]


def test_who_was_only_sent_ahead_when_the_worker_failed_may_go_elsewhere(worker: Worker) -> None:
    scheduler = Scheduler(worker, 8, worker.clock)
    worker.go.release()
    assert Client(scheduler, "first").outcome() == b"first"
    clients = crowd_after(scheduler, worker, "abc")
    until(lambda: worker.waiting == 2, "a turn that is sent ahead")
    worker.fault = WorkerCrashedError("crash")
    worker.go.release()
    assert [client.outcome() for client in clients] == [
        *(WorkerCrashedError, WorkerGoneError, WorkerGoneError)
    ]


def test_requests_without_memory_for_all_are_run_one_by_one(worker: Worker) -> None:
    class Small(Worker):
        def take(self, turn: Turn) -> Sequence[Reply] | None:
            replies = super().take(turn)
            assert replies is not None
            return replies if len(replies) == 1 and bytes(replies[0].body) != b"c" else None

    worker = Small()
    scheduler = Scheduler(worker, 8, CLOCK)
    *served, refused = crowd(scheduler, worker, "abc")
    worker.go.release(4)
    assert [client.outcome() for client in served] == [b"a", b"b"]
    answer = refused.outcome()
    assert isinstance(answer, bytes)
    assert b"memory" in answer
    assert worker.turns == [[b"a"], [b"b", b"c"], [b"b"], [b"c"]]


def test_a_fault_of_ours_leaves_nobody_waiting(scheduler: Scheduler, worker: Worker) -> None:
    clients = crowd(scheduler, worker, "abc")
    worker.fault = ZeroDivisionError()
    worker.go.release()
    assert [client.outcome() for client in clients] == [
        *(ZeroDivisionError, WorkerGoneError, WorkerGoneError)
    ]


def test_a_closed_scheduler_sends_everyone_away(scheduler: Scheduler, worker: Worker) -> None:
    first, *others = crowd(scheduler, worker, "abc")
    scheduler.close("the worker was stopped")
    assert [client.outcome() for client in others] == [WorkerGoneError, WorkerGoneError]
    worker.go.release()
    assert first.outcome() == b"a"
    assert Client(scheduler, "d").outcome() is WorkerGoneError


def test_a_turn_waits_for_others_only_as_long_as_it_may(worker: Worker) -> None:
    patient = Turn(timeout_s=1.0, max_batch=2, max_queue_delay_s=1e6)
    turns: list[int] = []

    def infer(requests: Sequence[Asked], _turn: Turn) -> Iterator[Reply]:
        turns.append(len(requests))
        return echoes(requests)

    scheduler = Scheduler(Runs(infer), 8, CLOCK)

    def ask(turn: Turn) -> None:
        asked = Asked(header_length=None, body=memoryview(b"x"))
        scheduler.answer(QueuedRequest(asked=asked, arrived_s=CLOCK.monotonic_s()), turn)

    threads = [threading.Thread(target=ask, args=(patient,), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    assert turns == [2]
    ask(Turn(timeout_s=1.0, max_batch=2, max_queue_delay_s=0.01))
    assert turns == [2, 1]


def test_many_threads_are_all_answered() -> None:
    served: list[int] = []

    def infer(requests: Sequence[Asked], _turn: Turn) -> Iterator[Reply]:
        served.append(len(requests))
        return echoes(requests)

    scheduler = Scheduler(Runs(infer), 64, CLOCK)
    wrong: list[object] = []

    def ask(name: bytes) -> None:
        for number in range(200):
            body = name + str(number).encode()
            request = QueuedRequest(
                asked=Asked(header_length=None, body=memoryview(body)),
                arrived_s=CLOCK.monotonic_s(),
                priority=1 + number % 9,
                deadline_s=CLOCK.monotonic_s() + PATIENCE_S,
            )
            if bytes(scheduler.answer(request, TURN).body) != body:
                wrong.append(body)

    threads = [threading.Thread(target=ask, args=(b"t%d-" % n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    assert wrong == []
    assert sum(served) == 8 * 200


@pytest.mark.parametrize(("batches", "large"), [(True, TooManySamplesError), (False, None)])
def test_only_the_large_requests_of_a_turn_are_to_blame_for_its_time(
    *, batches: bool, large: type[FleetError] | None
) -> None:
    def run(requests: Sequence[Asked], _turn: Turn) -> Iterator[Reply]:
        if bytes(requests[0].body) != b"first":
            raise WorkerTimeoutError("no answer")
        until(lambda: queue.waiting == 2)
        return echoes(requests)

    queue = Scheduler(Runs(run), 8, CLOCK)
    turn = Turn(timeout_s=1.0, max_batch=4, batches=batches)
    first, *others = [
        QueuedRequest(asked=Asked(header_length=None, body=memoryview(body)), arrived_s=0.0)
        for body in (b"first", b'{"inputs": [{"shape": [1]}]}', b'{"inputs": [{"shape": [99]}]}')
    ]
    faults: dict[int, type[BaseException]] = {}

    def ask(number: int) -> None:
        try:
            queue.answer(others[number], turn)
        except FleetError as exc:
            faults[number] = type(exc)

    leader = threading.Thread(target=queue.answer, args=(first, turn))
    leader.start()
    until(lambda: first.began_s is not None)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in (leader, *threads):
        finished(thread)
    assert faults[1] is (large or WorkerTimeoutError)
    assert faults[0] is (WorkerGoneError if large else WorkerTimeoutError)
    assert queue.ended_by_request == batches
