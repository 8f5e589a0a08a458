"""Whatever clients, the runner and power cuts do to the queue, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from agent.serve.deferred.queue import MOST_BEGUN, DeferredQueue, Found
from agent.serve.deferred.settings import DeferredSettings
from agent.serve.deferred.store import DeferredStore
from agent.serve.errors import DeferralError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard

LONG_S = 1e6
SETTINGS = DeferredSettings(
    requests=6, memory_bytes=100, disk_bytes=100, expire_s=LONG_S, keep_s=LONG_S
)


class AnyOrder(RuleBasedStateMachine):
    """What was accepted is waiting, running or answered until its client forgets it."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.clock, self.heard = FakeClock(), Heard([], [])
        self.known: dict[str, bool] = {}
        """Whether each ticket is durable."""

        self.answers: dict[str, bytes] = {}
        self.runs: str | None = None
        self.cut: dict[str, int] = {}
        """During how many runs of a ticket the power was cut."""

        self.power_cut()

    def teardown(self) -> None:
        self.place.cleanup()

    @rule()
    def power_cut(self) -> None:
        store = DeferredStore(Path(self.place.name), SETTINGS.disk_bytes, self.heard)
        self.queue = DeferredQueue(SETTINGS, store, self.heard, self.clock)
        self.queue.load()
        self.known = {ticket: True for ticket, durable in self.known.items() if durable}
        if self.runs is not None:
            self.cut[self.runs] = self.cut.get(self.runs, 0) + 1
        self.runs = None

    @rule(target=tickets, durable=st.booleans(), size=st.integers(0, 60))
    def accept(self, durable: bool, size: int) -> object:
        self.clock.advance(1e-3)
        call = InferenceCall(
            model="digits", version=None, header_length=None, body=memoryview(b"x" * size)
        )
        try:
            ticket = self.queue.accept(call, durable=durable)
        except DeferralError:
            return multiple()
        self.known[ticket] = durable
        return ticket

    @rule()
    def begin(self) -> None:
        begun = self.queue.begin()
        if begun is not None:
            assert self.runs is None
            self.runs = begun[0]

    @rule(size=st.integers(0, 40))
    def finish(self, size: int) -> None:
        if self.runs is not None:
            body = b"y" * size
            self.queue.finish(self.runs, Reply(status=200, headers={}, body=memoryview(body)))
            if self.runs in self.known and size <= 25:
                self.answers[self.runs] = body
            self.runs = None

    @rule()
    def put_back(self) -> None:
        if self.runs is not None:
            self.queue.put_back(self.runs)
            self.runs = None

    @rule(ticket=consumes(tickets))
    def forget(self, ticket: str) -> None:
        assert self.queue.forget(ticket) is (ticket in self.known)
        self.known.pop(ticket, None)

    @rule(ticket=tickets)
    def find(self, ticket: str) -> None:
        found = self.queue.find(ticket)
        assert (found is not None) is (ticket in self.known)

    @invariant()
    def accepted_requests_are_there_and_answers_stay(self) -> None:
        for ticket in self.known:
            found = self.queue.find(ticket)
            assert found is not None
            if ticket in self.answers:
                assert self.answered(found) == self.answers[ticket]
            elif ticket == self.runs:
                assert found.state == "running"
            elif found.state == "answered":
                assert found.reply is not None
                given_up = self.cut.get(ticket, 0) >= MOST_BEGUN
                assert (found.reply.status == 500) is given_up or found.reply.status == 413

    @invariant()
    def room_is_bounded(self) -> None:
        files = [path.stat().st_size for path in Path(self.place.name).iterdir()]
        head_bytes = 200  # beside the body; texts of faults count as bodies
        assert len(files) <= SETTINGS.requests
        assert sum(files) <= SETTINGS.disk_bytes + head_bytes * len(files)
        held = sum(
            len(call.body)
            for ticket in self.queue._tickets.values()
            if (call := ticket.call) is not None
        )
        assert held <= SETTINGS.memory_bytes

    @staticmethod
    def answered(found: Found) -> bytes:
        assert found.reply is not None
        return bytes(found.reply.body)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
