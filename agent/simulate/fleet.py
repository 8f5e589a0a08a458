"""The program that plays devices: one thread for all of them, one for the broker, some that enrol.

Rules:
- Devices enrol as agents do, a few at a time: each has a key, an account or a certificate of its
  own. They share one key for TLS, because making a key takes a process.
- Keys lie in a directory that is removed at the end: a device does not come back in another run.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import EnrolmentRefusedError, StoppedError
from agent.interrupts import Interrupts
from agent.link.enrolment import Applicant, Enrolment, Login
from agent.link.identity import Identity
from agent.link.outage import Outage
from agent.link.tls_key import TlsKey
from agent.simulate.device import Device
from telemetry.device.recorder import Recorder
from wire.broker_address import BrokerAddress
from wire.clock import Clock
from wire.errors import FleetError
from wire.mqtt import MqttTransport
from wire.mqtt_loop import MqttLoop
from wire.simulation import Plan, Tally
from wire.transport import Connection, ConnectionHandler, MessageHandler, Received, Transport
from wire.trust.root import trust_from_bytes
from wire.version import VERSION

ENROL_AT_ONCE: Final = 8
AGAIN_S: Final = 5.0
TELL_EVERY_S: Final = 1.0


class SharedTlsKey(TlsKey):
    """A certificate of a device's own, for the key that all devices of the process share.

    Args:
        directory: Of the device.
        key_file: The key.
        asked: The certificate signing request by that key, PEM: it names no device.
    """

    def __init__(self, directory: Path, key_file: Path, asked: str) -> None:
        super().__init__(directory, key_file)
        self._asked = asked

    def request(self) -> str:
        """Return the certificate signing request."""
        return self._asked


class HeardTransport(MqttTransport):
    """A connection that tells when something has come, and counts what goes out."""

    on_heard: Callable[[], None]
    tally: Tally

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        """Begin to connect."""

        def message(received: Received) -> None:
            on_message(received)
            self.on_heard()

        def connection(change: Connection) -> None:
            on_connection(change)
            self.on_heard()

        super().start(message, connection)

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Hand a message over, and count it."""
        is_sent = super().publish(topic, payload, expiry_s=expiry_s)
        self.tally.sent += int(is_sent)
        return is_sent


class Fleet:
    """All devices of one process.

    Args:
        plan: What is played.
        directory: For keys; the caller removes it.
        clock: The time.
    """

    def __init__(self, plan: Plan, directory: Path, clock: Clock) -> None:
        self.clock = clock
        self.tally = Tally()
        self._plan = plan
        self._directory = directory
        self._trust = trust_from_bytes(plan.trust.encode())
        self._loop = MqttLoop(clock)
        self._interrupts = Interrupts(clock)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._devices: list[Device] = []
        self._stopped = threading.Event()
        self._tls_key = TlsKey(directory)

    def after(self, wait_s: float, what: Callable[[], None]) -> None:
        """Do something later, in the thread of all devices."""
        due_s = self.clock.monotonic_s() + wait_s
        heapq.heappush(self._timers, (due_s, next(self._count), what))

    def stop(self) -> None:
        """Let `run` come to its end; any thread may call this."""
        self._interrupts.stop()
        self._stopped.set()
        self._work.put(_nothing)

    def run(self, tell: Callable[[Tally], None]) -> None:
        """Play until stopped.

        Args:
            tell: Takes what has happened so far, each second and at the end.

        Raises:
            CertificateError: The shared key cannot be made.
            StorageError: The directory cannot be written.
        """
        asked = self._tls_key.request()
        enrolling = ThreadPoolExecutor(ENROL_AT_ONCE, thread_name_prefix="enrol")
        try:
            for number in range(*self._plan.numbers):
                enrolling.submit(self._enrol, number, asked)
            self._tell(tell)
            while not self._stopped.is_set():
                self._do_next()
        finally:
            self._interrupts.stop()
            enrolling.shutdown(cancel_futures=True)
            for device in self._devices:
                device.end()
            self._loop.close()
            tell(self.tally)

    def _tell(self, tell: Callable[[Tally], None]) -> None:
        tell(self.tally)
        self.after(TELL_EVERY_S, lambda: self._tell(tell))

    def _do_next(self) -> None:
        """Do what comes next: what came from the broker, or what is due."""
        now_s = self.clock.monotonic_s()
        while self._timers and self._timers[0][0] <= now_s:
            heapq.heappop(self._timers)[2]()
        with contextlib.suppress(queue.Empty):
            self._work.get(timeout=max(0.0, self._timers[0][0] - now_s))()

    def _enrol(self, number: int, asked: str) -> None:
        """Enrol a device, in a thread that may wait."""
        name = f"{self._plan.prefix}-{number:05d}"
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        tls_key = SharedTlsKey(directory, self._tls_key.key_file, asked)
        identity = Identity(directory, name, tls_key)
        where = f"{self._plan.host}:{self._plan.port}"
        applicant = Applicant(
            device=name,
            profile=self._plan.profile,
            labels=self._plan.labels,
            agent_version=VERSION,
        )
        enrolment = Enrolment(
            applicant,
            identity,
            self._connect,
            trust=self._trust,
            outage=Outage(where, Recorder(self.clock), self.clock),
            interrupts=self._interrupts,
            clock=self.clock,
        )
        while True:
            try:
                enrolment.apply(self._plan.token)
            except StoppedError:
                return
            except EnrolmentRefusedError as exc:
                self._work.put(lambda why=str(exc): self._refused(why))  # type: ignore[misc]  # bound now
                return
            except FleetError:
                with contextlib.suppress(StoppedError):
                    self._interrupts.wait(AGAIN_S, abandon=False)
            else:
                self._work.put(lambda: self._begin(name, number, identity))
                return

    def _refused(self, why: str) -> None:
        self.tally.refused += 1
        self.tally.last_refusal = why

    def _begin(self, name: str, number: int, identity: Identity) -> None:
        self.tally.enrolled += 1
        device = Device(name, number, self._plan, self._trust, self)
        self._devices.append(device)

        def heard() -> None:
            self._work.put(device.wake)

        def connect(login: Login) -> Transport:
            transport = self._connect(login)
            transport.on_heard, transport.tally = heard, self.tally
            return transport

        device.begin(connect, identity.account)

    def _connect(self, login: Login) -> HeardTransport:
        address = BrokerAddress(
            host=self._plan.host, port=self._plan.port, ca_file=self._plan.ca_file
        )
        if (shown := login.certificate) is not None:
            address = msgspec.structs.replace(
                address,
                port=shown.port,
                cert_file=str(shown.cert_file),
                key_file=str(shown.key_file),
            )
        transport = HeardTransport(
            address,
            client_id=login.client_id,
            username=login.username,
            password=login.password,
            will=login.will,
            loop=self._loop,
        )
        transport.on_heard, transport.tally = _nothing, Tally()
        return transport


def _nothing() -> None:
    """Do nothing."""
