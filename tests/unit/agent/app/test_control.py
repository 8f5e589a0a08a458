"""The control socket: answers, refusals, bounds."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.app.control import MAX_REQUEST_BYTES, ControlServer, ask
from agent.errors import ControlError
from tests.simulators.patience import PATIENCE_S


def answer(command: str, arguments: dict[str, Any]) -> Any:
    if command == "echo":
        return arguments
    raise ControlError(f"there is no command {command!r}", remedy="use echo")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Serve on a socket."""
    server = ControlServer(tmp_path / "control.sock", answer)
    server.start()
    yield tmp_path / "control.sock"
    server.stop()


def say(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as stream:
            return stream.read()


def test_it_answers(path: Path) -> None:
    assert ask(path, "echo", {"a": [1, None]}) == {"a": [1, None]}


def test_several_requests_on_one_connection(path: Path) -> None:
    line = b'{"command": "echo", "arguments": {"n": 1}}\n'
    lines = say(path, line + line).splitlines()
    assert [json.loads(one) for one in lines] == [{"result": {"n": 1}}] * 2


def test_a_refusal_comes_with_its_remedy(path: Path) -> None:
    with pytest.raises(ControlError, match="there is no command 'fly'") as caught:
        ask(path, "fly")
    assert caught.value.remedy == "use echo"


@pytest.mark.parametrize(
    "data",
    [b"\n", b"nonsense\n", b"[]\n", b"{}\n", b'{"command": 3}\n', b"\xff\n", b"[" * 5000 + b"\n",
     b'{"command": "echo", "arguments": []}\n', b"x" * (MAX_REQUEST_BYTES + 10)],
)  # fmt: skip
def test_whatever_is_said_gets_one_error_and_does_no_harm(path: Path, data: bytes) -> None:
    assert "error" in json.loads(say(path, data).splitlines()[0])
    assert ask(path, "echo", {}) == {}


def test_the_socket_is_private_and_goes_with_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    server = ControlServer(path, answer)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.start()
    server.stop()
    assert not path.exists()


def test_what_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = ControlServer(path, answer)
    server.start()
    assert ask(path, "echo", {}) == {}
    server.stop()


def test_without_an_agent_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no agent answers at") as caught:
        ask(tmp_path / "control.sock", "status")
    assert "fleet-agent run" in caught.value.remedy


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="longer than 107 bytes"):
        ControlServer(tmp_path / ("d" * 100) / "control.sock", answer)
