"""The control socket: answers, refusals, bounds."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.app.control import MAX_REQUEST_BYTES, PART_TIMEOUT_S, ControlServer, Pull, ask
from agent.errors import ControlError
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S

CLOCK = FakeClock()


def answer(command: str, arguments: dict[str, Any]) -> Any:
    if command == "echo":
        return arguments
    raise ControlError(f"there is no command {command!r}", remedy="use echo")


def take(arguments: dict[str, Any], pull: Pull) -> Any:
    pull(0, 0)
    return [pull(offset, length).decode() for offset, length in arguments["parts"]]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Serve on a socket."""
    server = ControlServer(tmp_path / "control.sock", answer, {"take": take}, clock=CLOCK)
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
    server = ControlServer(path, answer, clock=CLOCK)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.start()
    server.stop()
    assert not path.exists()


def test_what_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = ControlServer(path, answer, clock=CLOCK)
    server.start()
    assert ask(path, "echo", {}) == {}
    server.stop()


def test_without_an_agent_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no agent answers at") as caught:
        ask(tmp_path / "control.sock", "status")
    assert "fleet-agent run" in caught.value.remedy


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="longer than 107 bytes"):
        ControlServer(tmp_path / ("d" * 100) / "control.sock", answer, clock=CLOCK)


CONTENT = b"0123456789"


def part(offset: int, length: int) -> bytes:
    return CONTENT[offset : offset + length]


def test_the_agent_reads_the_file_that_comes_with_a_request(path: Path) -> None:
    wanted = {"parts": [[3, 2], [0, 1], [0, 10]]}
    assert ask(path, "take", wanted, part=part) == ["34", "0", "0123456789"]


def test_a_client_whose_file_fails_says_why_and_harms_nobody(path: Path) -> None:
    def fail(_offset: int, length: int) -> bytes:
        if length:
            raise ControlError("cannot read the stick: input/output error")
        return b""

    with pytest.raises(ControlError, match="input/output error"):
        ask(path, "take", {"parts": [[0, 5]]}, part=fail)
    assert ask(path, "echo", {}) == {}


def test_a_client_that_ends_early_ends_the_work(path: Path) -> None:
    request = json.dumps({"command": "take", "arguments": {"parts": [[0, 5]]}}).encode() + b"\n"
    lines = [json.loads(line) for line in say(path, request + b"123").splitlines()]
    assert lines[:2] == [{"part": [0, 0]}, {"part": [0, 5]}]
    assert lines[2]["error"] == "the client has gone"


@pytest.mark.parametrize("wanted", [[-1, 5], [0, -1], [0, 2**21], [0, 1.5], [True, 1], [0], "x"])
def test_an_impossible_part_is_refused_by_the_client(tmp_path: Path, wanted: Any) -> None:
    path = tmp_path / "control.sock"

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        asking = threading.Thread(target=answer_once, args=(listening, {"part": wanted}))
        asking.start()
        with pytest.raises(ControlError, match="impossible part"):
            ask(path, "take", {}, part=part)
        asking.join(PATIENCE_S)


def test_an_agent_that_ends_before_it_answers_is_told(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        asking = threading.Thread(target=answer_once, args=(listening, None))
        asking.start()
        with pytest.raises(ControlError, match="ended before it answered"):
            ask(path, "take", {}, part=part)
        asking.join(PATIENCE_S)


def answer_once(listening: socket.socket, value: Any) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as stream:
        stream.readline()
        if value is not None:
            connection.sendall(json.dumps(value).encode() + b"\n")


def test_a_part_that_comes_byte_by_byte_has_a_deadline(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as stream:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        request = {"command": "take", "arguments": {"parts": [[0, 9]]}}
        connection.sendall(json.dumps(request).encode() + b"\n")
        for _ in range(2):
            assert "part" in json.loads(stream.readline())
        connection.sendall(b"0")
        CLOCK.advance(PART_TIMEOUT_S)
        connection.sendall(b"1")
        answered = json.loads(stream.readline())
    assert answered["error"] == "the file is too slow: 9 bytes of it took over 60 s"
    assert "what has come is kept" in answered["remedy"]
