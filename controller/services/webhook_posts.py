"""Posts one body to one webhook, within a time, and tells what came of it.

Rules:
- Nothing that a receiver does takes longer than `TIMEOUT_S` from the connection on, however slowly
  it answers; of its answer only the head is read, and a head that is cut off is no answer.
- No redirect is followed, and no proxy of the environment is used.
- The secret, and the address beyond its host, are in no text.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Final

from controller.alert_settings import WebhookConfig
from controller.domain.alert_posts import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    signature,
)
from controller.domain.device_text import clean
from controller.errors import SettingsError
from controller.named_files import read_secret
from wire.files import open_file
from wire.version import VERSION

TIMEOUT_S: Final = 5.0
MIN_SECRET_CHARS: Final = 16
_BUSY: Final = frozenset({
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
})  # fmt: skip

CUT_AGAIN_S: Final = 0.05


class Answered(Enum):
    """What came of a post."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The receiver works, and does not want this post."""

    FAILED = "failed"
    """There is no receiver, or it cannot work now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a post, and why."""

    answered: Answered
    fault: str = ""


class Webhook:
    """A receiver of posts.

    Args:
        config: Where it is.
        timeout_s: How long a post may take.

    Raises:
        SettingsError: Its secret or the file of its authority is unusable.
    """

    def __init__(self, config: WebhookConfig, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.name = config.name
        self._parts = config.parts
        self._secret = _read_secret(config).encode()
        self._tls = None
        if config.parts.scheme == "https":
            try:
                if config.ca_file is not None:
                    open_file(Path(config.ca_file)).close()  # no pipe
                self._tls = ssl.create_default_context(cafile=config.ca_file)
            except OSError as exc:
                raise SettingsError(
                    f"cannot use ca_file of the webhook {config.name}: {config.ca_file}",
                    remedy="name the PEM file of the authority in alerts.webhooks",
                ) from exc

    def post(self, identifier: str, content: bytes, timestamp_s: float) -> Outcome:
        """Post a body.

        Args:
            identifier: Of the post.
            content: The body.
            timestamp_s: Wall time.

        Returns:
            What came of it.
        """
        timestamp = str(int(timestamp_s))
        headers = {
            "Content-Type": "application/json",
            "Connection": "close",
            "User-Agent": f"edgefleet/{VERSION}",
            DELIVERY_HEADER: identifier,
            TIMESTAMP_HEADER: timestamp,
            SIGNATURE_HEADER: signature(self._secret, timestamp, content),
        }
        connection = self._connection()
        try:
            status = _within(
                self._timeout_s, connection, lambda: self._ask(connection, content, headers)
            )
        except ssl.SSLCertVerificationError as exc:
            return Outcome(Answered.FAILED, f"its certificate is refused: {exc.verify_message}")
        except TimeoutError:
            return Outcome(Answered.FAILED, f"it does not answer within {self._timeout_s:g} s")
        except (OSError, HTTPException, UnicodeError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            return Outcome(Answered.FAILED, f"no answer: {clean(str(reason).lower(), 200)}")
        return _judged(status)

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        made: HTTPConnection
        if self._tls is not None:
            made = HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        else:
            made = HTTPConnection(host, port, timeout=self._timeout_s)
        made.response_class = _WholeHead
        return made

    def _connect(self, connection: HTTPConnection) -> None:
        """Connect; `HTTPSConnection.connect` has no socket that could be cut in the handshake.

        Raises:
            OSError: There is no connection, or no TLS.
        """
        host = connection.host
        plain = socket.create_connection((host, connection.port), self._timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = plain  # whatever becomes of it is closed with the connection
        if self._tls is None:
            return
        sock = self._tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        connection.sock = sock
        sock.do_handshake()

    def _ask(self, connection: HTTPConnection, content: bytes, headers: dict[str, str]) -> int:
        self._connect(connection)
        path = self._parts.path or "/"
        target = f"{path}?{self._parts.query}" if self._parts.query else path
        connection.request("POST", target, content, headers)
        return connection.getresponse().status


class _Lines:
    """Lines of a connection, of which the last is remembered."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._stream.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class _WholeHead(HTTPResponse):
    """An answer whose head has come to its end, which `http.client` does not ask for."""

    def begin(self) -> None:
        lines = _Lines(self.fp)
        self.fp = lines  # type: ignore[assignment]  # it has what is used of a stream
        super().begin()
        if lines.last not in {b"\r\n", b"\n"}:
            raise HTTPException("the head of the answer is cut off")


def _within(timeout_s: float, connection: HTTPConnection, ask: Callable[[], int]) -> int:
    """Ask, and cut the connection when the time is over.

    The limit of a socket begins anew with each byte.

    Raises:
        TimeoutError: The time was over.
        OSError: There is no answer.
        HTTPException: The answer is not HTTP.
    """
    is_over, has_ended = threading.Event(), threading.Event()

    def cut() -> None:
        is_over.set()
        while not has_ended.is_set():  # there may be no connection yet
            sock = connection.sock
            if sock is not None:
                with suppress(OSError):
                    # Not the method of TLS, which another thread may be using.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
            has_ended.wait(CUT_AGAIN_S)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        status = ask()
    except (OSError, HTTPException) as exc:
        if is_over.is_set():
            raise TimeoutError from exc
        raise
    finally:
        has_ended.set()
        timer.cancel()
        with suppress(OSError):
            connection.close()
    return status


def _judged(status: int) -> Outcome:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Outcome(Answered.ACCEPTED)
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return Outcome(Answered.REFUSED, f"it redirects ({status}), which is not followed")
    is_refusal = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    if is_refusal and status not in _BUSY:
        return Outcome(Answered.REFUSED, f"it refuses with {status}")
    return Outcome(Answered.FAILED, f"it answers {status}")


def _read_secret(config: WebhookConfig) -> str:
    """Return the secret of a webhook.

    Raises:
        SettingsError: It cannot be read, is too short, or others may read it.
    """
    path = Path(config.secret_file)
    secret = read_secret(str(path), "the secret of a webhook")
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116 - as the file was read
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SettingsError(
                f"the secret of the webhook {config.name} in {path} can be read by others",
                remedy=f"run: chmod 600 {path}",
            )
    if len(secret) < MIN_SECRET_CHARS or not secret.isascii():
        raise SettingsError(
            f"the secret of the webhook {config.name} is shorter than {MIN_SECRET_CHARS}",
            remedy="put 32 random characters there",
        )
    return secret
