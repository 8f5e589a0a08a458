"""The queue of requests that may wait: its order, its bounds, its clocks and its memory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.serve.deferred.queue import EARLIEST_S, MOST_BEGUN, DeferredQueue
from agent.serve.deferred.settings import FETCHED_S, DeferredSettings
from agent.serve.deferred.store import DeferredStore
from agent.serve.errors import DeferralError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard

SETTINGS = DeferredSettings(
    requests=4, memory_bytes=400, disk_bytes=400, expire_s=1000.0, keep_s=100.0
)
BOTH = pytest.mark.parametrize("durable", [False, True], ids=["in memory", "durable"])


class Rig:
    """A queue whose process may end and start again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock, self.heard = FakeClock(), Heard([], [])
        self.settings = SETTINGS
        self.start()

    def start(self) -> None:
        store = DeferredStore(self.directory, self.settings.disk_bytes, self.heard)
        self.queue = DeferredQueue(self.settings, store, self.heard, self.clock)
        self.queue.load()

    def accept(
        self, body: bytes = b"x", *, durable: bool = False, wait_s: float | None = None
    ) -> str:
        call = InferenceCall(
            model="digits", version=None, header_length=None, body=memoryview(body),
            timeout_s=wait_s,
        )  # fmt: skip
        self.clock.advance(1e-3)
        return self.queue.accept(call, durable=durable)

    def run(self) -> str:
        """Answer the next request with its body, and return its ticket."""
        begun = self.queue.begin()
        assert begun is not None
        self.queue.finish(begun[0], reply(bytes(begun[1].body)))
        return begun[0]

    def state(self, ticket: str) -> str:
        found = self.queue.find(ticket)
        return found.state if found is not None else "unknown"

    def answer(self, ticket: str) -> tuple[int, bytes]:
        found = self.queue.find(ticket)
        assert found is not None
        assert found.reply is not None
        return found.reply.status, bytes(found.reply.body)

    def files(self) -> list[str]:
        return sorted(path.suffix for path in self.directory.iterdir())


def reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status=status, headers={}, body=memoryview(body))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@BOTH
def test_requests_are_answered_in_their_order_one_at_a_time(rig: Rig, durable: bool) -> None:
    tickets = [rig.accept(body, durable=durable) for body in (b"a", b"b")]
    assert [rig.state(ticket) for ticket in tickets] == ["waiting", "waiting"]
    begun = rig.queue.begin()
    assert begun is not None
    assert (begun[0], bytes(begun[1].body)) == (tickets[0], b"a")
    assert rig.state(tickets[0]) == "running"
    assert rig.queue.begin() is None
    rig.queue.finish(tickets[0], reply(b"A"))
    assert rig.run() == tickets[1]
    assert [rig.answer(ticket) for ticket in tickets] == [(200, b"A"), (200, b"b")]
    assert rig.queue.waiting == 0


def test_tickets_cannot_be_guessed(rig: Rig) -> None:
    tickets = {rig.accept() for _ in range(4)}
    assert len(tickets) == 4
    assert all(len(ticket) == 32 for ticket in tickets)
    assert rig.state("0" * 32) == "unknown"


@BOTH
def test_a_full_queue_refuses_and_keeps_what_it_has(rig: Rig, durable: bool) -> None:
    tickets = [rig.accept(durable=durable) for _ in range(4)]
    with pytest.raises(DeferralError) as refused:
        rig.accept(durable=durable)
    assert refused.value.status == 503
    assert rig.queue.forget(tickets[0])
    rig.accept(durable=durable)
    assert [rig.state(ticket) for ticket in tickets[1:]] == ["waiting"] * 3


@BOTH
def test_bytes_are_bounded_apart(rig: Rig, durable: bool) -> None:
    with pytest.raises(DeferralError) as long:
        rig.accept(b"x" * 201, durable=durable)
    assert long.value.status == 413
    rig.accept(b"x" * 150, durable=durable)
    with pytest.raises(DeferralError) as full:
        rig.accept(b"x" * 51, durable=durable)
    assert full.value.status == 503
    rig.accept(b"x" * 150, durable=not durable)


@BOTH
def test_while_answers_have_no_room_none_is_made(rig: Rig, durable: bool) -> None:
    tickets = [rig.accept(b"x" * 90, durable=durable) for _ in range(2)]
    assert rig.run() == tickets[0]
    tickets.append(rig.accept(b"x" * 90, durable=durable))
    assert (
        rig.run() == tickets[1]
    )  # together they have 180 of the 100 bytes of which one more begins
    assert rig.queue.begin() is None
    assert not rig.queue.wait(0.0)
    rig.queue.forget(tickets[0])
    assert rig.run() == tickets[2]


@BOTH
def test_an_answer_that_is_too_long_to_keep_says_so(rig: Rig, durable: bool) -> None:
    ticket = rig.accept(durable=durable)
    begun = rig.queue.begin()
    assert begun is not None
    rig.queue.finish(ticket, reply(b"x" * 101))
    assert rig.answer(ticket)[0] == 413


@BOTH
def test_a_request_that_waited_for_too_long_is_late_and_then_forgotten(
    rig: Rig, durable: bool
) -> None:
    short, usual = rig.accept(durable=durable, wait_s=10.0), rig.accept(durable=durable)
    rig.clock.advance(11.0)
    assert rig.answer(short)[0] == 504
    assert rig.state(usual) == "waiting"
    rig.clock.advance(SETTINGS.keep_s + 1.0)
    assert rig.state(short) == "unknown"
    rig.clock.advance(SETTINGS.expire_s)
    assert rig.answer(usual)[0] == 504
    with pytest.raises(AssertionError):
        rig.run()


def test_nobody_waits_longer_than_the_device_allows(rig: Rig) -> None:
    ticket = rig.accept(wait_s=1e9)
    rig.clock.advance(SETTINGS.expire_s + 1.0)
    assert rig.answer(ticket)[0] == 504


@BOTH
def test_an_answer_that_was_fetched_is_kept_for_a_minute_more(rig: Rig, durable: bool) -> None:
    ticket = rig.accept(durable=durable)
    rig.run()
    assert rig.answer(ticket) == (200, b"x")
    rig.clock.advance(FETCHED_S / 2)
    assert rig.answer(ticket) == (200, b"x")
    rig.clock.advance(FETCHED_S / 2)
    assert rig.state(ticket) == "unknown"
    assert rig.files() == []


@BOTH
def test_who_only_looks_whether_the_answer_is_there_does_not_shorten_its_time(
    rig: Rig, durable: bool
) -> None:
    ticket = rig.accept(durable=durable)
    rig.run()
    found = rig.queue.find(ticket, fetched=False)
    assert found is not None
    assert found.reply is not None
    rig.clock.advance(SETTINGS.keep_s - 1.0)
    assert rig.state(ticket) == "answered"


@BOTH
def test_what_was_forgotten_leaves_nothing(rig: Rig, durable: bool) -> None:
    waits, runs, answered = (rig.accept(durable=durable) for _ in range(3))
    assert rig.queue.forget(waits)
    begun = rig.queue.begin()
    assert begun is not None
    assert begun[0] == runs
    assert rig.queue.forget(runs)
    rig.queue.finish(runs, reply(b"late"))
    rig.run()
    assert rig.queue.forget(answered)
    assert not rig.queue.forget(answered)
    assert [rig.state(ticket) for ticket in (waits, runs, answered)] == ["unknown"] * 3
    assert rig.files() == []
    rig.start()
    assert rig.queue.waiting == 0


def test_durable_requests_and_answers_survive_a_restart_and_others_do_not(rig: Rig) -> None:
    answered, waits = rig.accept(b"a", durable=True), rig.accept(b"b", durable=True)
    rig.run()
    lost = rig.accept(b"c")
    rig.start()
    assert rig.state(lost) == "unknown"
    assert rig.answer(answered) == (200, b"a")
    assert rig.run() == waits
    rig.start()
    assert rig.answer(waits) == (200, b"b")
    assert rig.heard.events == []


def test_one_during_which_the_agent_ends_again_and_again_is_given_up(rig: Rig) -> None:
    ticket = rig.accept(durable=True)
    for _ in range(MOST_BEGUN):
        assert rig.state(ticket) == "waiting"
        assert rig.queue.begin() is not None
        rig.start()
    assert rig.answer(ticket)[0] == 500
    rig.start()
    assert rig.answer(ticket)[0] == 500
    assert rig.queue.begin() is None


def test_one_that_was_put_back_was_not_begun(rig: Rig) -> None:
    ticket = rig.accept(durable=True)
    for _ in range(3 * MOST_BEGUN):
        assert rig.queue.begin() is not None
        rig.queue.put_back(ticket)
        rig.start()
    assert rig.state(ticket) == "waiting"


def test_the_wall_clock_says_what_is_left_after_a_restart(rig: Rig) -> None:
    ticket = rig.accept(durable=True, wait_s=500.0)
    rig.clock.advance(400.0)
    rig.start()
    assert rig.state(ticket) == "waiting"
    rig.clock.advance(101.0)
    assert rig.answer(ticket)[0] == 504


@pytest.mark.parametrize(
    ("came_s", "by_s"),
    [
        pytest.param(0.0, 1.8e9, id="accepted in 1970, and then the clock was set"),
        pytest.param(EARLIEST_S + 1e7, -1e6, id="the clock went back"),
        pytest.param(EARLIEST_S + 1e7, -EARLIEST_S, id="the clock was lost"),
    ],
)
def test_a_clock_that_knows_nothing_lets_the_time_begin_anew(
    tmp_path: Path, came_s: float, by_s: float
) -> None:
    rig = Rig(tmp_path)
    rig.clock = FakeClock(came_s)
    rig.start()
    ticket = rig.accept(durable=True, wait_s=500.0)
    rig.clock.correct(by_s)
    assert rig.state(ticket) == "waiting", "within a process the wall clock says nothing"
    rig.start()
    rig.clock.advance(SETTINGS.expire_s - 1.0)
    assert rig.state(ticket) == "waiting"
    rig.clock.advance(2.0)
    assert rig.answer(ticket)[0] == 504


def test_a_full_disk_refuses_and_loses_no_answer(rig: Rig) -> None:
    ticket = rig.accept(durable=True)
    begun = rig.queue.begin()
    assert begun is not None
    for path in rig.directory.iterdir():
        path.unlink()
    rig.directory.rmdir()
    rig.directory.write_text("nothing can be written here")
    with pytest.raises(DeferralError) as refused:
        rig.accept(durable=True)
    assert refused.value.status == 503
    rig.queue.finish(ticket, reply(b"answer"))
    assert rig.answer(ticket) == (200, b"answer")
    assert [kind for kind, _, _ in rig.heard.events] == ["storage"]
    rig.directory.unlink()


def test_an_answer_that_was_damaged_meanwhile_is_said_once(rig: Rig) -> None:
    ticket = rig.accept(durable=True)
    rig.run()
    (file,) = rig.directory.iterdir()
    file.write_bytes(b"damaged")
    with pytest.raises(DeferralError) as lost:
        rig.queue.find(ticket)
    assert lost.value.status == 500
    assert rig.state(ticket) == "unknown"
    assert len(rig.heard.events) == 1


def test_a_request_that_was_damaged_meanwhile_is_answered_so(rig: Rig) -> None:
    ticket = rig.accept(durable=True)
    (file,) = rig.directory.iterdir()
    file.write_bytes(b"damaged")
    assert rig.queue.begin() is None
    assert rig.answer(ticket)[0] == 500


def test_a_smaller_limit_refuses_new_requests_alone(rig: Rig) -> None:
    tickets = [rig.accept(durable=True) for _ in range(3)]
    rig.settings = msgspec.structs.replace(SETTINGS, requests=1)
    rig.start()
    assert [rig.run() for _ in tickets] == tickets
    with pytest.raises(DeferralError):
        rig.accept()
