"""A hostile client: of the broker, of the API and of every device's endpoint.

Rules:
- All of it goes to loopback, at a bounded rate, and ends with `stop`.
- It has an account of its own, as a stolen device would, and nothing else that is secret.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter

from tests.field.fleet import FieldFleet
from tests.simulators.fuzz_client import UnexpectedError
from tests.simulators.fuzz_requests import KINDS
from tests.simulators.stack import Puppet, Stack
from wire import topics
from wire.errors import FleetError
from wire.mqtt import MqttTransport

STEP_S = 0.25
UNFINISHED = 40
NAME = "stolen"
KINDS_OF_REPORTS: tuple[topics.UpKind, ...] = (
    "hello", "report", "telemetry", "chunk_request", "presence",
)  # fmt: skip
ABSURD = (
    b"",
    b"null",
    b'{"schema_version": 99}',
    b'{"device": "field-00", "at_s": 1e300, "revision": 9223372036854775807}',
    b"\xc1" * 1000,
    bytes(2 * 1024 * 1024),
)


class HostileClient:
    """Does harm, or tries.

    Args:
        fleet: That it attacks.
        rng: Chooses.
    """

    def __init__(self, fleet: FieldFleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self.tried: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._attacks = (
            self._fuzz, self._fuzz, self._login, self._connect_and_wait, self._shout, self._lie,
        )  # fmt: skip
        self._stolen: Puppet | None = None

    def start(self, token: str) -> None:
        """Enrol a device, and begin.

        Args:
            token: With which it enrols.
        """
        box = self._fleet.box
        stack = Stack(home=box.home, api_port=self._fleet.api_port, broker_port=box.broker_port)
        self._stolen = Puppet(stack, NAME, token, "succeeded")
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stopping.set()
        self._thread.join()
        if self._stolen is not None:
            self._stolen.transport.close()

    def _run(self) -> None:
        while not self._stopping.wait(STEP_S):
            attack = self._rng.choice(self._attacks)
            with contextlib.suppress(OSError, FleetError, UnexpectedError):
                attack()

    def _fuzz(self) -> None:
        """Send a malformed request to an endpoint."""
        device = self._rng.choice(self._fleet.devices)
        case = KINDS[self._rng.choice(sorted(KINDS))](self._rng)
        self.tried["malformed requests"] += 1
        with socket.create_connection(("127.0.0.1", device.port), 1.0) as sock:
            for piece in case.sends:
                if isinstance(piece, bytes):
                    sock.sendall(piece)
            sock.settimeout(0.2)
            sock.recv(1024)

    def _login(self) -> None:
        """Claim to be another device, or the controller, without their passwords."""
        name = self._rng.choice([*(device.name for device in self._fleet.devices), "controller"])
        self.tried["logins with a wrong password"] += 1
        transport = MqttTransport(
            self._fleet.broker_address, client_id=name, username=name, password="guessed"
        )
        transport.start(lambda _received: None, lambda _connection: None)
        self._stopping.wait(0.2)
        transport.close()

    def _connect_and_wait(self) -> None:
        """Hold many unfinished requests at the API, at the broker and at an endpoint."""
        device = self._rng.choice(self._fleet.devices)
        ports = (self._fleet.api_port, self._fleet.box.broker_port, device.port)
        self.tried["unfinished requests"] += UNFINISHED
        with contextlib.ExitStack() as held:
            for number in range(UNFINISHED):
                port = ports[number % len(ports)]
                sock = held.enter_context(socket.create_connection(("127.0.0.1", port), 1.0))
                sock.sendall(b"POST /v1/devices HTTP/1.1\r\nHost: x\r\n")
            self._stopping.wait(1.0)

    def _lie(self) -> None:
        """Publish as a device with an account: nonsense as itself, and orders to others."""
        assert self._stolen is not None
        device = self._rng.choice(self._fleet.devices)
        content = self._rng.choice([*ABSURD, self._rng.randbytes(200)])
        kind = self._rng.choice(KINDS_OF_REPORTS)
        self.tried["lies of a stolen device"] += 1
        for topic in (
            topics.up(NAME, kind),
            topics.up(device.name, kind),
            topics.down(device.name, "desired"),
        ):
            self._stolen.transport.publish(topic, content)

    def _shout(self) -> None:
        """Publish in the name of a device without an account."""
        device = self._rng.choice(self._fleet.devices)
        kind = self._rng.choice(KINDS_OF_REPORTS)
        self.tried["messages without an account"] += 1
        transport = MqttTransport(self._fleet.broker_address, client_id=f"x-{device.name}")
        transport.start(lambda _received: None, lambda _connection: None)
        transport.publish(topics.up(device.name, kind), self._rng.randbytes(200))
        self._stopping.wait(0.1)
        transport.close()
