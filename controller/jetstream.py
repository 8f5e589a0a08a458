"""The log in which telemetry waits to be stored, in NATS JetStream: what goes in, and comes out.

Rules:
- The library is imported when a log is used: it is an extra.
- What the log has acknowledged is stored some time. It leaves the log when the database has it, and
  a full log takes nothing more: a stream that may drop something is refused.
- A batch may be handed over twice, as after a kill. The log drops one that comes again within two
  minutes, by (device, boot, sequence), and the store counts each once.
- The store takes a batch for counted that is too far behind the newest of its device. So none is
  stored while older ones are with another reader that may have been killed, but for `MAX_AHEAD`.
- There is one connection. Whatever fails ends it, is told once, and a new one is tried; meanwhile
  nothing is taken, and nobody waits for that.
- How the server is reached, and what its stream must be, is in `controller.jetstream_server`.

Source:
    NATS documentation, "JetStream": consumers, message deduplication.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from controller.errors import SettingsError, TelemetryLogError
from controller.jetstream_server import (
    ANSWER_S,
    CONSUMER,
    FETCH_S,
    HEADER_BYTES,
    LogServer,
    fault_text,
)
from controller.telemetry_settings import LogConfig
from wire import topics
from wire.errors import FleetError, TopicError
from wire.telemetry import TelemetryBatch

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

AT_ONCE: Final = 100
"""Batches that are handed over together."""

MAX_AHEAD: Final = 240
"""How far a batch may be ahead of the oldest in the log that is with another reader. It is the
window of a device's numbers that the store knows (`telemetry.server.ingest.WINDOW`), less the 8
that a device sends at one time, in any order, and 8 more."""

MAX_ON_THE_WAY_BYTES: Final = 16 * 1024 * 1024
"""What the log has not acknowledged yet, headers and all; what comes beyond is not taken."""

RETRY_S: Final = 1.0
LOOK_AGAIN_S: Final = 0.05
CANCEL_S: Final = 0.5
STORE_S: Final = 60.0
DEVICE_HEADER: Final = "Edgefleet-Device"
CAME_HEADER: Final = "Edgefleet-Came"

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A batch for the log."""

    batch: TelemetryBatch
    payload: bytes
    """The batch, as it came."""

    came_s: float
    """Wall time at the controller that took it."""


class Logged(NamedTuple):
    """A batch from the log."""

    device: str
    payload: bytes
    came_s: float


Store = Callable[[Sequence[Logged]], set[int]]
"""Stores batches; returns which of them nobody can read. A `FleetError` says that none need be
stored yet."""


class TelemetryLog:
    """Takes batches in, and hands them over to be stored.

    Args:
        config: Where it is.
        store_s: After so long without a word, the log hands a batch over again.

    Raises:
        SettingsError: A file of the settings is unusable, or the library is not installed.
    """

    def __init__(self, config: LogConfig, store_s: float = STORE_S) -> None:
        if importlib.util.find_spec("nats") is None:
            raise SettingsError(
                "the client of NATS is not installed, and [telemetry.log] needs it",
                remedy="pip install 'edgefleet[nats]'",
            )
        self._stream = config.stream
        self._server = LogServer(config, store_s)
        self._faults: dict[str, str] = {"connection": "not connected yet"}
        self._lock = threading.Lock()
        self._on_the_way_bytes = 0
        self._jetstream: JetStreamContext | None = None
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def start(self, store: Store) -> None:
        """Begin; returns at once, also when the log is away.

        Args:
            store: Called in a thread of its own, for one group of batches after another.
        """
        self._main = main = self._loop.create_task(self._keep_on(store))
        self._thread = threading.Thread(
            target=self._run, args=(main,), name="telemetry-log", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; what is not stored stays in the log. Also when it was never started."""
        if self._thread is None or self._main is None:
            self._loop.close()
            return
        # Before Python 3.12 a wait that ends at that moment forgets that it was cancelled.
        for _ in range(math.ceil(timeout_s / CANCEL_S)):
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(CANCEL_S)
            if not self._thread.is_alive():
                return

    def needs(self) -> list[str]:
        """Return what the log needs from people, one line; it names no address."""
        if not any(self._faults.values()):
            return []
        return [
            (
                "the log of telemetry, NATS JetStream, does not work: start it, or correct"
                " [telemetry.log] in controller.toml; the log of the controller says more"
            )
        ]

    def put(self, entries: Sequence[Entry], taken: Callable[[Sequence[Entry]], None]) -> None:
        """Put batches into the log; returns at once.

        Args:
            entries: The batches.
            taken: Is told those that the log has, in the thread of the connection.
        """
        fitting: list[Entry] = []
        size_bytes = 0
        with self._lock:
            if self._jetstream is None:
                return  # it is not acknowledged, and its device sends it again
            for entry in entries:
                one_bytes = len(entry.payload) + HEADER_BYTES
                if self._on_the_way_bytes + size_bytes + one_bytes <= MAX_ON_THE_WAY_BYTES:
                    fitting.append(entry)
                    size_bytes += one_bytes
            self._on_the_way_bytes += size_bytes
        if fitting:
            asyncio.run_coroutine_threadsafe(self._put(fitting, taken, size_bytes), self._loop)

    def _run(self, main: asyncio.Task[None]) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(main)
        self._loop.run_until_complete(self._finish())
        self._loop.close()

    async def _finish(self) -> None:
        """End what is under way, such as tasks of the client."""
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _keep_on(self, store: Store) -> None:
        from nats.errors import Error

        while True:
            try:
                await self._use(store)
            except (OSError, Error, TelemetryLogError) as exc:
                self._note("connection", fault_text(exc))
            except Exception:  # noqa: BLE001 - the next time may succeed; a dead thread cannot
                _log.exception("the log of telemetry failed; it is tried again")
                self._note("connection", "the controller failed to use it")
            await asyncio.sleep(RETRY_S)

    async def _use(self, store: Store) -> None:
        """Connect, and hand over what comes, until something fails.

        Raises:
            TelemetryLogError: It cannot be used as it is.
        """
        from nats.aio.client import Client
        from nats.errors import TimeoutError as NothingError

        client = Client()
        try:
            await self._server.connect(client)
            jetstream = client.jetstream(timeout=ANSWER_S)
            await self._server.prepare(jetstream)
            waiting = await jetstream.pull_subscribe_bind(CONSUMER, self._stream)
            self._jetstream = jetstream
            self._faults = {"connection": self._faults["connection"]}  # what failed with the last
            self._note("connection", "")
            while client.is_connected:
                messages: list[Msg] = []
                with suppress(NothingError):
                    messages = await waiting.fetch(AT_ONCE, FETCH_S)
                if messages:
                    await self._hand_over(jetstream, messages, store)
                else:  # as if the consumer were gone
                    await self._server.prepare_consumer(jetstream)
                    # It answers, and nothing waits: what failed before may have nothing to try.
                    self._note("taking", "")
                    self._note("storing", "")
            raise TelemetryLogError("the connection ended")
        finally:
            self._jetstream = None
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):  # a TLS connection may never end by itself
                    await client.close()

    async def _put(
        self, entries: Sequence[Entry], taken: Callable[[Sequence[Entry]], None], size_bytes: int
    ) -> None:
        jetstream = self._jetstream
        try:
            answers = await asyncio.gather(
                *(self._put_one(jetstream, entry) for entry in entries), return_exceptions=True
            )
            faults = [fault_text(answer) for answer in answers if isinstance(answer, Exception)]
            if jetstream is self._jetstream is not None:
                self._note("taking", faults[0] if faults else "")
            pairs = zip(entries, answers, strict=True)
            taken([entry for entry, answer in pairs if answer is None])
        except Exception:  # noqa: BLE001 - the devices send them again
            _log.exception("the controller failed to acknowledge telemetry")
        finally:
            with self._lock:
                self._on_the_way_bytes -= size_bytes

    async def _put_one(self, jetstream: JetStreamContext | None, entry: Entry) -> None:
        """Put a batch into the log.

        Raises:
            TelemetryLogError: There is no connection.
        """
        if jetstream is None:
            raise TelemetryLogError("there is no connection")
        device, boot, sequence = entry.batch.device, entry.batch.boot_id, entry.batch.sequence
        # A name may have points, which part a subject; the header has it as it is.
        await jetstream.publish(
            f"{self._stream}.{device.replace('.', '_')}",
            entry.payload,
            timeout=ANSWER_S,
            stream=self._stream,  # no other one may have its subjects
            headers={
                "Nats-Msg-Id": f"{device}/{quote(boot, '')}/{sequence}",
                DEVICE_HEADER: device,
                CAME_HEADER: repr(entry.came_s),
            },
        )

    async def _hand_over(
        self, jetstream: JetStreamContext, messages: Sequence[Msg], store: Store
    ) -> None:
        """Let batches be stored, and take them out of the log.

        Raises:
            CancelledError: The controller stops.
        """
        ours: list[tuple[Msg, Logged]] = []
        for message in sorted(messages, key=_place):
            found = _logged(message)
            if found is None:
                _log.warning("a message in the log of telemetry is not of a controller: dropped")
                await message.term()
            else:
                ours.append((message, found))
        try:
            unreadable = set[int]()
            ready = await self._ready(jetstream, [_place(message) for message, _ in ours])
            if ready:
                unreadable = await asyncio.to_thread(store, [found for _, found in ours[:ready]])
        except FleetError as exc:
            self._note("storing", exc.message)
            await _give_back(ours, RETRY_S)
            await asyncio.sleep(RETRY_S)
            return
        except asyncio.CancelledError:
            await _give_back(ours, 0.0)  # another controller need not wait for them
            raise
        self._note("storing", "")
        for at, (message, _) in enumerate(ours[:ready]):
            await (message.term() if at in unreadable else message.ack())
        if ready < len(ours):
            await _give_back(ours[ready:], RETRY_S)
            await self._server.prepare_consumer(jetstream)
            await asyncio.sleep(RETRY_S)

    async def _ready(self, jetstream: JetStreamContext, places: Sequence[int]) -> int:
        """Return how many of some batches may be stored now, the first ones.

        Args:
            jetstream: Knows the oldest batch that is in the log. It may still have some that were
                acknowledged a moment ago, so it is asked again.
            places: Where they are in the log; rising.
        """
        ready, end_s = 0, self._loop.time() + RETRY_S
        while True:
            info = await jetstream.stream_info(self._stream)
            ready = in_turn(info.state.first_seq, places)
            if ready == len(places) or self._loop.time() > end_s:
                return ready
            await asyncio.sleep(LOOK_AGAIN_S)

    def _note(self, part: str, fault: str) -> None:
        """Note what is wrong with a part of it, and tell that once."""
        before, self._faults[part] = self._faults.get(part, ""), fault
        if fault and fault != before:
            _log.warning("the log of telemetry (%s) is tried again: %s", part, fault)
        elif before and not fault:
            _log.info("the log of telemetry (%s) works", part)


def in_turn(oldest: int, places: Sequence[int]) -> int:
    """Return how many batches may be stored, the first ones, so that the order stays good enough.

    Args:
        oldest: Where the oldest batch is that is in the log.
        places: Where they are; rising.
    """
    for at, place in enumerate(places):
        has_all_older = place - oldest <= at
        if not has_all_older and place - oldest > MAX_AHEAD:
            return at
    return len(places)


async def _give_back(ours: Sequence[tuple[Msg, Logged]], after_s: float) -> None:
    """Let batches be handed over again, to anybody."""
    for message, _ in ours:
        await message.nak(after_s)


def _place(message: Msg) -> int:
    """Return where a message is in the log."""
    return message.metadata.sequence.stream


def _logged(message: Msg) -> Logged | None:
    """Return a batch from the log; None if no controller put it there."""
    headers = message.headers or {}
    with suppress(ValueError, TopicError):
        device = topics.checked_device(headers.get(DEVICE_HEADER, ""))
        came_s = float(headers.get(CAME_HEADER, ""))
        return Logged(device, message.data, came_s) if math.isfinite(came_s) else None
    return None
