"""The local control socket: one JSON request a line, one JSON answer a line.

Rules:
- The socket belongs to the agent's user alone (mode 0600): a client that can open it may send every
  command.
- Lines are bounded. The server disconnects a client that sends nothing for some seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agent import socket_server
from agent.errors import ControlError
from wire.errors import FleetError
from wire.files import PRIVATE

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 64 * 1024
TIMEOUT_S: Final = 10.0
SOCKET_FILE: Final = "control.sock"
MAX_SOCKET_PATH: Final = 107
"""Length of sun_path in unix(7), without its final zero."""

Answer = Callable[[str, dict[str, Any]], Any]
"""Takes a command and its arguments, returns what JSON can hold or raises a FleetError."""


class ControlServer:
    """Answers on the control socket, each client in a thread.

    Args:
        path: Path of the socket.
        answer: Answers a command.

    Raises:
        ControlError: The socket cannot be made.
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        check_path(path)
        self._path = path
        try:
            path.unlink(missing_ok=True)
            # The directory is 0700, so other users can never connect.
            self._server = _Server(str(path), answer)
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


def ask(path: Path, command: str, arguments: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
    """Ask the agent that runs on this device.

    Args:
        path: Path of its control socket.
        command: Name of the command.
        arguments: Arguments of the command.

    Returns:
        The answer, a value that JSON can hold.

    Raises:
        ControlError: No agent answers, or it refuses.
    """
    check_path(path)
    request = json.dumps({"command": command, "arguments": arguments or {}}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_LINE_BYTES + 1)
    except OSError as exc:
        raise ControlError(
            f"no agent answers at {path}: {(exc.strerror or str(exc)).lower()}",
            remedy=(
                "start the agent with `fleet-agent run`, and run this command as the agent's user"
            ),
        ) from exc
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

    def __init__(self, path: str, answer: Answer) -> None:
        self.answer = answer
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
            return {"result": self.server.answer(command, arguments)}
        except FleetError as exc:
            return {"error": exc.message, "remedy": exc.remedy, "code": exc.code}


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ControlError("the request is not one line with a JSON object")
    return value
