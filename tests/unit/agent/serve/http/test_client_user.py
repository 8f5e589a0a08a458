"""Whose client is at the other end, as the kernel says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.serve.http.client_user import user_of
from tests.simulators.patience import PATIENCE_S
from tests.simulators.shared_memory import NEEDS_ROOT, STRANGER

ASK = """
import os, socket, sys
os.setuid(int(sys.argv[1]))  # who may not read Python's library: nothing is imported from here on
with socket.socket() as sock:
    sock.connect(("127.0.0.1", int(sys.argv[2])))
    sock.recv(1)
"""


@contextmanager
def connected(listening: str, asking: str, *, family: int) -> Iterator[socket.socket]:
    """Return the accepted end of a connection."""
    server = socket.create_server((listening, 0), family=socket.AF_INET6 if ":" in listening else 2)
    with server, socket.socket(family) as client:
        client.connect((asking, server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            yield accepted


@pytest.mark.parametrize(
    ("listening", "asking", "family"),
    [
        ("127.0.0.1", "127.0.0.1", socket.AF_INET),
        ("127.0.0.1", "::ffff:127.0.0.1", socket.AF_INET6),
        ("::1", "::1", socket.AF_INET6),
    ],
)
def test_a_client_on_loopback_has_its_user(listening: str, asking: str, family: int) -> None:
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with connected(listening, asking, family=family) as connection:
        assert user_of(connection) == os.getuid()


def test_a_client_on_a_unix_socket_has_its_user(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
        connection, _ = server.accept()
        with connection:
            assert user_of(connection) == os.getuid()


def test_a_client_that_has_gone_is_not_taken_for_root() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
        with connection:
            client.close()  # the kernel's list has this socket on, without its user
            assert connection.recv(1) == b""
            assert user_of(connection) is None


def test_an_end_that_is_not_connected_has_no_user() -> None:
    with socket.socket() as sock:
        assert user_of(sock) is None


@contextmanager
def of_user(user: str) -> Iterator[socket.socket]:
    """Return the accepted end of a connection from a process of a user."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        port = str(server.getsockname()[1])
        client = subprocess.Popen([sys.executable, "-c", ASK, user, port])
        connection, _ = server.accept()
        with connection:
            yield connection
        assert client.wait(PATIENCE_S) == 0


@pytest.mark.skipif(os.getuid() != 0, reason=NEEDS_ROOT)
def test_another_user_is_seen_as_such() -> None:
    with of_user(str(STRANGER)) as connection:
        assert user_of(connection) == STRANGER


@pytest.mark.skipif(os.getuid() != 0, reason=NEEDS_ROOT)
def test_a_user_that_stands_for_many_is_nobody() -> None:
    with of_user(Path("/proc/sys/kernel/overflowuid").read_text().strip()) as connection:
        assert user_of(connection) is None
