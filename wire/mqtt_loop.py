"""Runs the connections of many MQTT clients in one thread; `wire.mqtt` gives each its own.

A thread for each connection is right for a device. A program that plays a thousand devices would
need a thousand, which wait for one another.

Rules:
- One thread reads and writes. Some helpers connect, because a handshake waits for the broker.
- A connection that ends is made again after 1 s to 30 s, as paho's own thread does it; the waits
  are varied, so that a thousand devices do not come back in the same moment.
- Handlers run in the thread of the loop: one that blocks holds up all connections.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from wire.clock import Clock, SystemClock

RECONNECT_MIN_S: Final = 1.0
RECONNECT_MAX_S: Final = 30.0
LOOK_EVERY_S: Final = 5.0
"""How often keep-alives are looked at: well within that of a connection, which is 30 s."""

CONNECTORS: Final = 8
MOST_READS: Final = 64
"""Packets that are read of one connection before others have their turn."""


class LoopClient(Protocol):
    """An MQTT client of paho, as far as a loop uses it."""

    on_socket_close: Any
    on_socket_register_write: Any

    def reconnect(self) -> object:
        """Connect, and wait until the socket is there; OSError if that fails."""
        ...

    def socket(self) -> Any:  # noqa: ANN401 - plain or TLS
        """Return the socket, or None."""
        ...

    def disconnect(self) -> object:
        """Say goodbye; the connection then ends."""
        ...

    def is_connected(self) -> bool:
        """Tell whether the broker has accepted the client."""
        ...

    def loop_read(self) -> int:
        """Read a packet that has come."""
        ...

    def loop_write(self) -> int:
        """Write what waits."""
        ...

    def loop_misc(self) -> int:
        """Send a keep-alive if it is time."""
        ...

    def want_write(self) -> bool:
        """Tell whether something waits to be written."""
        ...


class _Member:
    """A client in the loop."""

    def __init__(self, client: LoopClient, on_failure: Callable[[], None]) -> None:
        self.client = client
        self.on_failure = on_failure
        self.sock: Any = None
        """The socket that the selector watches."""

        self.wait_s = RECONNECT_MIN_S
        self.leaves = False


class MqttLoop:
    """The thread for many connections.

    Args:
        clock: For keep-alives and new attempts.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, _Member] = {}
        self._todo: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.settimeout(0)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._connectors = ThreadPoolExecutor(CONNECTORS, thread_name_prefix="connect")
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)
        self._thread.start()

    def add(self, client: LoopClient, on_failure: Callable[[], None]) -> None:
        """Connect a client, again and again, until it is removed.

        Args:
            client: Where to connect has been set.
            on_failure: Called when it could not connect.
        """
        member = _Member(client, on_failure)

        def wants_write(*_: object) -> None:
            self._do(lambda: self._write(member))

        def closes(*_: object) -> None:
            self._forget(member)

        client.on_socket_register_write = wants_write
        client.on_socket_close = closes
        self._members[id(client)] = member
        self._connect(member)

    def remove(self, client: LoopClient) -> None:
        """Let a client go that has been told to disconnect; what it has to say is written."""
        member = self._members.pop(id(client), None)
        if member is not None:
            member.leaves = True
            self._do(lambda: self._write(member))

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._connectors.shutdown(cancel_futures=True)
        self._do(self._end)
        self._thread.join()
        for end in (self._woken, self._waker):
            end.close()
        self._selector.close()

    def _end(self) -> None:
        self._closed = True

    def _do(self, what: Callable[[], None]) -> None:
        """Let the thread of the loop do something soon."""
        with self._lock:
            self._todo.append(what)
            is_first = len(self._todo) == 1
        if is_first:
            with contextlib.suppress(OSError):  # full: it will wake anyway
                self._waker.send(b"x")

    def _after(self, wait_s: float, what: Callable[[], None]) -> None:
        due_s = self._clock.monotonic_s() + wait_s
        heapq.heappush(self._timers, (due_s, next(self._count), what))

    def _run(self) -> None:
        self._after(LOOK_EVERY_S, self._look)
        while True:
            for key, _events in self._selector.select(self._rest_s()):
                if key.data is None:
                    with contextlib.suppress(OSError):
                        self._woken.recv(4096)
                else:
                    self._serve(key.data)
            with self._lock:
                todo, self._todo = self._todo, []
            for what in todo:
                what()
            while self._timers and self._timers[0][0] <= self._clock.monotonic_s():
                heapq.heappop(self._timers)[2]()
            if self._closed and not self._todo:
                return

    def _rest_s(self) -> float:
        return max(0.0, self._timers[0][0] - self._clock.monotonic_s())

    def _serve(self, member: _Member) -> None:
        """Read what has come, and write what waits."""
        client = member.client
        for _ in range(MOST_READS):
            if client.loop_read() != 0 or (sock := client.socket()) is None:
                break
            # TLS may hold what the selector does not see any more.
            if not getattr(sock, "pending", int)():
                break
        if client.socket() is not None and client.want_write():
            client.loop_write()
        self._settle(member)

    def _write(self, member: _Member) -> None:
        if member.client.socket() is not None:
            member.client.loop_write()
        self._settle(member)

    def _settle(self, member: _Member) -> None:
        """Watch for what the client waits for; begin anew if its connection has ended."""
        client = member.client
        if client.is_connected():
            member.wait_s = RECONNECT_MIN_S
        if member.sock is not None and client.socket() is member.sock:
            events = selectors.EVENT_READ
            if client.want_write():
                events |= selectors.EVENT_WRITE
            self._selector.modify(member.sock, events, member)

    def _look(self) -> None:
        self._after(LOOK_EVERY_S, self._look)
        for member in list(self._members.values()):
            if member.sock is not None:
                member.client.loop_misc()
                self._settle(member)

    def _connect(self, member: _Member) -> None:
        if not member.leaves and not self._closed:
            with contextlib.suppress(RuntimeError):  # the loop is being closed
                self._connectors.submit(self._attempt, member)

    def _attempt(self, member: _Member) -> None:
        """Connect, in a thread that may wait."""
        if member.leaves:
            return
        try:
            member.client.reconnect()
        except OSError:
            member.on_failure()
            self._do(lambda: self._again(member))
        else:
            self._do(lambda: self._watch(member))

    def _watch(self, member: _Member) -> None:
        sock = member.client.socket()
        if sock is None:
            self._again(member)
            return
        member.sock = sock
        self._selector.register(sock, selectors.EVENT_READ, member)
        if member.leaves:  # it was removed while it connected
            member.client.disconnect()
        self._write(member)

    def _forget(self, member: _Member) -> None:
        """Take note that a client closes its socket."""
        sock, member.sock = member.sock, None
        if sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            self._again(member)

    def _again(self, member: _Member) -> None:
        """Connect once more after a while."""
        if member.leaves:
            return
        wait_s = member.wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        member.wait_s = min(2.0 * member.wait_s, RECONNECT_MAX_S)
        self._after(wait_s, lambda: self._connect(member))
