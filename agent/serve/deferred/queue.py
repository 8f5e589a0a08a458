"""The requests that may wait: accepted, begun one at a time in their order, and their answers.

```
accept -> waiting -> running -> answered -> forgotten
             ^          |
             +----------+   the device is busy again, or the agent stopped
```

Rules:
- Everything is bounded: requests and answers in number and bytes, waiting and keeping in time. A
  full queue refuses a new request; it drops none that it accepted.
- A durable request is on the disk before its client hears of it, its answer before the request is
  removed. The memory holds neither body.
- Times within a process are monotonic. After a restart the wall clock says how much is left, unless
  it said less than 2025 or went back: then the time begins anew.
"""

from __future__ import annotations

import secrets
import threading
from typing import Final, Literal, TypeAlias

import msgspec

from agent.errors import StorageError
from agent.ports import RecorderPort
from agent.serve.deferred.settings import ANSWER_SHARE, FETCHED_S, REQUESTS_SHARE, DeferredSettings
from agent.serve.deferred.store import DeferredStore, Kept, StoredAnswer, StoredRequest
from agent.serve.errors import DeferralError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from wire.clock import Clock

TICKET_BYTES: Final = 16
"""128 random bits: nobody guesses the ticket of another client."""

MOST_BEGUN: Final = 3
"""A durable request during which the agent ended so often is given up: it may be the cause."""

EARLIEST_S: Final = 1_735_689_600.0
"""2025-01-01: a clock that shows less was never set."""

RETRY_AFTER_S: Final = 5
"""What a client is told that asks before its answer is there, or finds the queue full."""

State: TypeAlias = Literal["waiting", "running", "answered"]


class Ticket(msgspec.Struct, kw_only=True, eq=False):
    """A request or its answer, as the memory knows it."""

    id: str
    durable: bool
    size_bytes: int
    until_s: float
    """When it expires, or is forgotten; monotonic."""

    state: State = "waiting"
    call: InferenceCall | None = None
    """The request; None if it is on the disk or answered."""

    reply: Reply | None = None
    """The answer; None if it is on the disk or not there."""

    begun: int = 0
    """How often a durable request was begun."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a client finds."""

    state: State
    reply: Reply | None = None
    """The answer, if the state is `answered`."""


class DeferredQueue:
    """Accepts requests, hands them out one at a time, and keeps their answers. For any thread.

    Args:
        settings: Bounds.
        store: Keeps durable requests.
        recorder: Counts requests, and records what storage loses.
        clock: For expiry.
    """

    def __init__(
        self,
        settings: DeferredSettings,
        store: DeferredStore,
        recorder: RecorderPort,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._changed = threading.Condition()
        self._tickets: dict[str, Ticket] = {}
        self._running: str | None = None
        """The ticket that was begun, even if it was forgotten since."""

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        with self._changed:
            return sum(ticket.state != "answered" for ticket in self._tickets.values())

    def load(self) -> None:
        """Take up what an earlier process left on the disk. A fault is an event."""
        with self._changed:
            try:
                kept = self._store.load()
            except StorageError as exc:
                self._recorder.event("storage", exc.message, {"code": exc.code})
                return
            for found in kept:
                self._tickets[found.id] = ticket = self._taken_up(found)
                if not found.answered and found.begun >= MOST_BEGUN:
                    text = f"the agent ended {found.begun} times while this request ran"
                    self._keep(ticket, Reply.refusal(500, text))

    def accept(self, call: InferenceCall, *, durable: bool) -> str:
        """Take a request.

        Args:
            call: The request; its `timeout_s` is how long it may wait, if that is shorter than
                `expire_s`.
            durable: Whether it must survive a restart.

        Returns:
            Its ticket.

        Raises:
            DeferralError: There is no room for it, or it cannot be written.
        """
        settings, size = self._settings, len(call.body)
        wait_s = min(call.timeout_s or settings.expire_s, settings.expire_s)
        with self._changed:
            self._expire()
            self._check_room(size, durable=durable)
            ticket = Ticket(
                id=secrets.token_hex(TICKET_BYTES),
                durable=durable,
                size_bytes=size,
                until_s=self._clock.monotonic_s() + wait_s,
            )
            if durable:
                self._save(ticket, call, wait_s)
            else:
                body = memoryview(bytes(call.body))  # alone: the client's memory goes back
                ticket.call = msgspec.structs.replace(call, body=body)
            self._tickets[ticket.id] = ticket
            self._changed.notify_all()
        self._recorder.add("deferred_requests_total", 1.0, {})
        return ticket.id

    def find(self, ticket_id: str, *, fetched: bool = True) -> Found | None:
        """Return how far a request is; None if its ticket is unknown.

        Args:
            ticket_id: The ticket.
            fetched: Whether the client gets the answer, which then is soon forgotten.

        Raises:
            DeferralError: The answer was lost on the disk.
        """
        with self._changed:
            self._expire()
            ticket = self._tickets.get(ticket_id)
            if ticket is None:
                return None
            if ticket.state != "answered":
                return Found(state=ticket.state)
            reply = ticket.reply or self._read_answer(ticket)
            if fetched:
                ticket.until_s = min(ticket.until_s, self._clock.monotonic_s() + FETCHED_S)
            return Found(state="answered", reply=reply)

    def forget(self, ticket_id: str) -> bool:
        """Forget a request and its answer; False if the ticket is unknown.

        Args:
            ticket_id: The ticket. If the request runs, its answer is dropped.

        Raises:
            DeferralError: It cannot be removed from the disk.
        """
        with self._changed:
            ticket = self._tickets.get(ticket_id)
            if ticket is None:
                return False
            if ticket.durable:
                try:
                    self._store.remove(ticket.id, ticket.begun)
                except StorageError as exc:
                    raise DeferralError(exc.message, retry_after_s=RETRY_AFTER_S) from exc
            del self._tickets[ticket.id]
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change if there is no request to run, and return whether there is one then.

        Args:
            timeout_s: How long to wait at most.
        """
        with self._changed:
            self._expire()
            if self._next() is None:
                self._changed.wait(timeout_s)
            return self._next() is not None

    def wake(self) -> None:
        """Let `wait` return."""
        with self._changed:
            self._changed.notify_all()

    def begin(self) -> tuple[str, InferenceCall] | None:
        """Return the next request and its ticket, for `finish` or `put_back`; None without one."""
        with self._changed:
            self._expire()
            ticket = self._next()
            if ticket is None:
                return None
            try:
                call = ticket.call or self._read(ticket)
            except StorageError as exc:
                self._keep(ticket, Reply.refusal(500, exc.message))
                return None
            ticket.state, self._running = "running", ticket.id
            return ticket.id, call

    def put_back(self, ticket_id: str) -> None:
        """Let a request wait again that was begun, and not for a fault of its own."""
        with self._changed:
            self._running = None
            ticket = self._tickets.get(ticket_id)
            if ticket is None:
                return
            ticket.state = "waiting"
            if ticket.durable and ticket.begun > 0:
                self._count(ticket, ticket.begun - 1)

    def finish(self, ticket_id: str, reply: Reply) -> None:
        """Keep the answer of a request that was begun; if it was forgotten, nothing is kept.

        Args:
            ticket_id: Its ticket.
            reply: The answer.
        """
        with self._changed:
            self._running = None
            ticket = self._tickets.get(ticket_id)
            if ticket is None:
                return
            most = int(ANSWER_SHARE * self._settings.room_bytes(durable=ticket.durable))
            if len(reply.body) > most:
                text = f"the answer has {len(reply.body)} bytes, and {most} can be kept"
                reply = Reply.refusal(413, text)
            self._keep(ticket, reply)

    def _next(self) -> Ticket | None:
        """Return the request that waits for longest, of those whose answer would have room."""
        if self._running is not None:
            return None
        has_room = {
            durable: self._held(answered=True, durable=durable)
            <= ANSWER_SHARE * self._settings.room_bytes(durable=durable)
            for durable in (False, True)
        }
        waiting = (ticket for ticket in self._tickets.values() if ticket.state == "waiting")
        return next((ticket for ticket in waiting if has_room[ticket.durable]), None)

    def _held(self, *, answered: bool, durable: bool) -> int:
        return sum(
            each.size_bytes
            for each in self._tickets.values()
            if each.durable is durable and (each.state == "answered") is answered
        )

    def _check_room(self, size: int, *, durable: bool) -> None:
        """Refuse a request for which there is no room.

        Raises:
            DeferralError: There is none.
        """
        settings = self._settings
        most = int(REQUESTS_SHARE * settings.room_bytes(durable=durable))
        if size > most:
            raise DeferralError(f"a deferrable request has {most} bytes at most", status=413)
        full = len(self._tickets) >= settings.requests
        if full or self._held(answered=False, durable=durable) + size > most:
            raise DeferralError(
                "too many deferrable requests wait, or their answers were not removed",
                retry_after_s=RETRY_AFTER_S,
            )

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        for ticket in [t for t in self._tickets.values() if t.until_s <= now_s]:
            if ticket.state == "waiting":
                self._recorder.add("deferred_expired_total", 1.0, {})
                self._keep(ticket, Reply.refusal(504, "the request waited for too long"))
            elif ticket.state == "answered":
                try:
                    if ticket.durable:
                        self._store.remove(ticket.id, ticket.begun)
                except StorageError as exc:
                    self._recorder.event("storage", exc.message, {"code": exc.code})
                del self._tickets[ticket.id]

    def _save(self, ticket: Ticket, call: InferenceCall, wait_s: float) -> None:
        now_s = self._clock.now_s()
        request = StoredRequest(
            model=call.model,
            version=call.version,
            header_length=call.header_length,
            body=call.body,
            came_s=now_s,
            expires_s=now_s + wait_s,
        )
        try:
            self._store.save_request(ticket.id, request)
        except StorageError as exc:
            raise DeferralError(exc.message, retry_after_s=RETRY_AFTER_S) from exc

    def _read(self, ticket: Ticket) -> InferenceCall:
        """Read a durable request, and note that it begins.

        Raises:
            StorageError: It is lost.
        """
        stored = self._store.read_request(ticket.id, ticket.begun)
        self._count(ticket, ticket.begun + 1)
        return InferenceCall(
            model=stored.model,
            version=stored.version,
            header_length=stored.header_length,
            body=stored.body,
        )

    def _count(self, ticket: Ticket, begun: int) -> None:
        """Note how often a durable request was begun; what cannot be noted is an event."""
        try:
            self._store.count(ticket.id, ticket.begun, begun)
        except StorageError as exc:
            self._recorder.event("storage", exc.message, {"code": exc.code})
        else:
            ticket.begun = begun

    def _read_answer(self, ticket: Ticket) -> Reply:
        try:
            stored = self._store.read_answer(ticket.id)
        except StorageError as exc:
            del self._tickets[ticket.id]
            raise DeferralError(exc.message, status=500) from exc
        return Reply(status=stored.status, headers=stored.headers, body=stored.body)

    def _keep(self, ticket: Ticket, reply: Reply) -> None:
        """Keep an answer. Where the disk takes none the memory does, until the agent ends."""
        ticket.state, ticket.call = "answered", None
        ticket.size_bytes = len(reply.body)
        ticket.until_s = self._clock.monotonic_s() + self._settings.keep_s
        body = memoryview(bytes(reply.body))  # alone: a frame may hold other answers too
        ticket.reply = Reply(status=reply.status, headers=reply.headers, body=body)
        if not ticket.durable:
            return
        answer = StoredAnswer(
            status=reply.status, headers=reply.headers, body=body, at_s=self._clock.now_s()
        )
        try:
            self._store.save_answer(ticket.id, answer, ticket.begun)
        except StorageError as exc:
            reason = f"an answer is in memory alone: {exc.message}"
            self._recorder.event("storage", reason, {"code": exc.code})
        else:
            ticket.reply = None

    def _taken_up(self, found: Kept) -> Ticket:
        """Return the ticket of what was on the disk."""
        settings, now_s = self._settings, self._clock.now_s()
        whole_s = settings.keep_s if found.answered else settings.expire_s
        ends_s = found.came_s + whole_s if found.answered else found.expires_s
        is_known = EARLIEST_S <= found.came_s <= now_s
        left_s = min(max(ends_s - now_s, 0.0), whole_s) if is_known else whole_s
        return Ticket(
            id=found.id,
            durable=True,
            size_bytes=found.size_bytes,
            until_s=self._clock.monotonic_s() + left_s,
            state="answered" if found.answered else "waiting",
            begun=found.begun,
        )
