"""A client that sends whatever bytes it is told, and tells what came back.

Rules:
- An answer counts only when it is proper HTTP/1.1 with the length that it announces; a refusal only
  when it is the protocol's `{"error": ...}`.
- It waits for nothing longer than its time: who hangs is found out.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeAlias

from tests.simulators.patience import PATIENCE_S

Verdict: TypeAlias = Literal["ok", "refused", "either"]
"""200 with the right output, a 4xx, or one of the two."""

FLOOD = bytes(1024 * 1024)
RESET = struct.pack("ii", 1, 0)
BAD_REQUEST, SERVER_ERROR = 400, 500


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a client does, and what has to come of it."""

    kind: str
    sends: tuple[bytes | float, ...]
    """Bytes to send, and seconds to wait between them."""

    answers: tuple[Verdict, ...] = ("refused",)
    """In this order and no more; none where the connection is to be closed without a word."""

    flood_bytes: int = 0
    """So many bytes more are sent, unless an answer comes before."""

    hangs_up: bool = False
    """Nothing more comes from the client, which still listens."""

    leaves: bool = False
    """The client goes away at once and listens to nothing."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class UnexpectedError(Exception):
    """What came back is not what had to come."""


class FuzzClient:
    """Plays cases.

    Args:
        port: Of the endpoint on 127.0.0.1.
        right: Body of the right answer's raw output.
        timeout_s: Longest wait for anything.
    """

    def __init__(self, port: int, right: bytes, timeout_s: float = PATIENCE_S) -> None:
        self._port = port
        self._right = right
        self._timeout_s = timeout_s

    def play(self, case: Case) -> tuple[int, ...]:
        """Do what a case says.

        Args:
            case: The case.

        Returns:
            The statuses that came back.

        Raises:
            UnexpectedError: Something else than expected happened.
        """
        with socket.create_connection(("127.0.0.1", self._port), self._timeout_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A server that has refused may have closed before all was sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                _send(sock, case)
            if case.leaves:
                return ()
            try:
                answers = self._listen(sock, len(case.answers))
            except TimeoutError:
                raise UnexpectedError(f"{case.kind}: no answer in {self._timeout_s:g} s") from None
        self._check(case, answers)
        return tuple(answer.status for answer in answers)

    def _listen(self, sock: socket.socket, count: int) -> list[Answer]:
        """Read that many answers, and on to the end where the server says that it closes.

        Raises:
            UnexpectedError: It is no HTTP.
            TimeoutError: Nothing came.
        """
        with sock.makefile("rb") as stream:
            answers: list[Answer] = []
            closing = count == 0
            while closing or len(answers) < count:
                answer = _answer(stream)
                if answer is None:
                    break
                if answer.status >= 200:
                    answers.append(answer)
                    closing = answer.headers.get("connection") == "close"
        return answers

    def _check(self, case: Case, answers: list[Answer]) -> None:
        """Compare what came with what had to come.

        Raises:
            UnexpectedError: They differ.
        """
        statuses = [answer.status for answer in answers]
        if len(answers) != len(case.answers):
            raise UnexpectedError(f"{case.kind}: {statuses} came for {case.answers}: {case.sends}")
        for answer, verdict in zip(answers, case.answers, strict=True):
            refused = BAD_REQUEST <= answer.status < SERVER_ERROR
            if refused and set(json.loads(answer.body)) != {"error"}:
                raise UnexpectedError(f"{case.kind}: a refusal without its reason: {answer}")
            right = answer.status == 200 and (
                verdict == "either" or answer.body.endswith(self._right)
            )
            if not {"ok": right, "refused": refused, "either": right or refused}[verdict]:
                raise UnexpectedError(f"{case.kind}: {answer} came for {verdict}: {case.sends}")


def _send(sock: socket.socket, case: Case) -> None:
    for piece in case.sends:
        if isinstance(piece, bytes):
            sock.sendall(piece)
        else:
            select.select([sock], [], [], piece)
    left = case.flood_bytes
    while left > 0 and not select.select([sock], [], [], 0)[0]:
        sock.sendall(FLOOD[:left])
        left -= len(FLOOD)
    if case.leaves:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif case.hangs_up:
        sock.shutdown(socket.SHUT_WR)


def _answer(stream: BinaryIO) -> Answer | None:
    """Read one answer; None at the end of the connection.

    Raises:
        UnexpectedError: It is no HTTP.
    """
    try:
        first = stream.readline(1000)
        if not first:
            return None
        version, status, _ = first.decode().split(" ", 2)
        headers = {}
        while (line := stream.readline(1000)) != b"\r\n":
            name, value = line.decode().removesuffix("\r\n").split(": ", 1)
            headers[name.lower()] = value
        length = int(headers.get("content-length", "0"))
        body = stream.read(length)
    except ConnectionResetError:
        return None
    except ValueError as exc:
        raise UnexpectedError(f"not an answer: {exc}") from exc
    if version != "HTTP/1.1" or len(body) != length:
        raise UnexpectedError(f"not a whole answer: {first!r}")
    return Answer(status=int(status), headers=headers, body=body)
