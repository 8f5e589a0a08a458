"""The local control socket: one JSON request a line, one JSON answer a line.

A request may come with a file. Then the agent asks for its parts, each by a line with an offset and
a length, and the client sends as many bytes, until the answer comes. So the agent needs no right to
the file, and a stick that fails or is pulled out stops the client, not the agent.

Rules:
- The socket belongs to the agent's user alone (mode 0600): a client that can open it may send every
  command.
- Lines are bounded. The server disconnects a client that sends nothing for some seconds, or takes
  longer than a minute for one part of its file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from agent import socket_server
from agent.errors import ControlError
from wire.clock import Clock
from wire.errors import FleetError
from wire.files import PRIVATE

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_PART_BYTES: Final = 1024 * 1024
TIMEOUT_S: Final = 10.0
SOCKET_FILE: Final = "control.sock"
MAX_SOCKET_PATH: Final = 107
"""Length of sun_path in unix(7), without its final zero."""

PART_TIMEOUT_S: Final = 60.0
"""In which a part of a file must come: the install thread waits for it."""

FILE_TIMEOUT_S: Final = 120.0
"""How long a client that sent a part of a file waits for the next line: the storage may be slow."""

Pull = Callable[[int, int], bytes]
"""Returns exactly so many bytes of the client's file at an offset; of no bytes it returns when the
client is still there. Raises ControlError."""

Answer = Callable[[str, dict[str, Any]], Any]
"""Takes a command and its arguments, returns what JSON can hold or raises a FleetError."""

AnswerFile = Callable[[dict[str, Any], Pull], Any]
"""Takes the arguments of a command and the file that comes with it; else as `Answer`."""


class ControlServer:
    """Answers on the control socket, each client in a thread.

    Args:
        path: Path of the socket.
        answer: Answers a command.
        with_file: Answers the commands that come with a file, by their names.
        clock: For the time that a part of a file takes.

    Raises:
        ControlError: The socket cannot be made.
    """

    def __init__(
        self,
        path: Path,
        answer: Answer,
        with_file: Mapping[str, AnswerFile] | None = None,
        *,
        clock: Clock,
    ) -> None:
        check_path(path)
        self._path = path
        try:
            path.unlink(missing_ok=True)
            # The directory is 0700, so other users can never connect.
            self._server = _Server(str(path), answer, with_file or {}, clock)
            path.chmod(PRIVATE)
        except OSError as exc:
            fact = (exc.strerror or str(exc)).lower()
            raise ControlError(f"cannot make {path.name}: {fact}") from exc
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._thread = socket_server.serve(self._server, "control")

    def stop(self) -> None:
        """Stop answering and remove the socket."""
        thread, self._thread = self._thread, None
        if thread is not None:
            socket_server.end(self._server, thread)
        self._server.server_close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def ask(
    path: Path,
    command: str,
    arguments: dict[str, Any] | None = None,
    *,
    part: Pull | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """Ask the agent that runs on this device.

    Args:
        path: Path of its control socket.
        command: Name of the command.
        arguments: Arguments of the command.
        part: Reads from the file that comes with the request, if one does.

    Returns:
        The answer, a value that JSON can hold.

    Raises:
        ControlError: No agent answers, or it refuses.
        FleetError: `part` raised it.
    """
    check_path(path)
    request = json.dumps({"command": command, "arguments": arguments or {}}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S if part is None else FILE_TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_LINE_BYTES + 1)
                while part is not None and line and "part" in (wanted := _decode(line)):
                    connection.sendall(part(*_bounds(wanted["part"])))
                    line = stream.readline(MAX_LINE_BYTES + 1)
    except OSError as exc:
        raise ControlError(
            f"no agent answers at {path}: {(exc.strerror or str(exc)).lower()}",
            remedy=(
                "start the agent with `fleet-agent run`, give this command as the agent's user, "
                "and name the agent's configuration with --config if it is another one"
            ),
        ) from exc
    if not line:
        raise ControlError(
            "the agent ended before it answered", remedy="give the command again when it runs"
        )
    reply = _decode(line)
    if "error" in reply:
        raise ControlError(str(reply["error"]), remedy=str(reply.get("remedy", "")))
    return reply.get("result")


def check_path(path: Path) -> None:
    """Refuse a path that no Unix socket can have.

    Args:
        path: Path of a socket.

    Raises:
        ControlError: It is too long.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ControlError(
            f"the path of the control socket is longer than {MAX_SOCKET_PATH} bytes",
            remedy="use a shorter state_dir",
        )


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, path: str, answer: Answer, with_file: Mapping[str, AnswerFile], clock: Clock
    ) -> None:
        self.clock = clock
        self.answer = answer
        self.with_file = with_file
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as inherited
        """Ignore the error: a client that went away is not an error of the agent."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = TIMEOUT_S
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline(MAX_REQUEST_BYTES + 1):
            self.wfile.write(json.dumps(self._answered(line)).encode() + b"\n")
            if not line.endswith(b"\n"):
                return

    def _answered(self, line: bytes) -> dict[str, Any]:
        try:
            request = _decode(line)
            command, arguments = request.get("command"), request.get("arguments", {})
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise ControlError("a request must have a command and arguments")
            if (answer := self.server.with_file.get(command)) is not None:
                return {"result": answer(arguments, self._pull)}
            return {"result": self.server.answer(command, arguments)}
        except FleetError as exc:
            return {"error": exc.message, "remedy": exc.remedy, "code": exc.code}

    def _pull(self, offset: int, length: int) -> bytes:
        end_s = self.server.clock.monotonic_s() + PART_TIMEOUT_S
        data = bytearray()
        try:
            self.wfile.write(json.dumps({"part": [offset, length]}).encode() + b"\n")
            while len(data) < length:
                if not (came := self.rfile.read1(length - len(data))):
                    raise ControlError("the client has gone")
                data += came
                if len(data) < length and self.server.clock.monotonic_s() >= end_s:
                    raise ControlError(
                        f"the file is too slow: {length} bytes of it took over "
                        f"{PART_TIMEOUT_S:.0f} s",
                        remedy="copy it to a faster medium; what has come is kept",
                    )
        except OSError as exc:
            raise ControlError("the client sends nothing any more") from exc
        return bytes(data)


def _bounds(value: object) -> tuple[int, int]:
    if (
        not isinstance(value, list)
        or [type(number) for number in value] != [int, int]
        or not 0 <= value[1] <= MAX_PART_BYTES
        or value[0] < 0
    ):
        raise ControlError("the agent asks for an impossible part of the file")
    return value[0], value[1]


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ControlError("the request is not one line with a JSON object")
    return value
