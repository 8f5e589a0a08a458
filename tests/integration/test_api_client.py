"""The command line's connection with a controller that ends idle ones."""

from __future__ import annotations

import socket

from controller.client.connection import MOST_IDLE_S, ApiClient
from controller.client.target import Target
from controller.schemas import Health
from tests.simulators.clock import FakeClock
from tests.simulators.raw_server import RawServer

HEALTH = b'{"status": "ok", "broker_connected": true, "version": "1"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(HEALTH), HEALTH)


def test_a_connection_that_was_idle_is_not_used_again() -> None:
    """The server ended it meanwhile: who uses it gets no answer from a controller that is well."""
    clock = FakeClock()

    def answer(sock: socket.socket, _request: bytes) -> bool:
        sock.sendall(ANSWER)
        return len(server.requests) != 2

    server = RawServer(answer)
    with server.running():
        target = Target(url=server.url(""), token="t" * 32)
        with ApiClient(target, clock=clock) as api:
            for idle_s in (0.0, 0.0, 2 * MOST_IDLE_S):
                clock.advance(idle_s)
                assert api.get("/v1/health", Health).status == "ok"
        assert (len(server.requests), server.connections) == (3, 2)
