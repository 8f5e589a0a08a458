"""One end of the socket pair between the supervisor and a worker: it sends and receives frames.

A frame is its length in four bytes, big endian, and a message of `agent.serve.frames` as
MessagePack.

Rules:
- No frame is longer than `MAX_FRAME_BYTES`. A longer frame is neither sent nor read.
- Decoding a frame copies no bytes: the views keep the frame in memory.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, Generic, TypeVar

import msgspec

from agent.serve.frames import MAX_FRAME_BYTES, Answer, Request
from agent.timed_socket import TimedSocket
from wire.clock import Clock
from wire.errors import WireFormatError

_LENGTH: Final = struct.Struct(">I")
_ONE_SEND_BYTES: Final = 64 * 1024
"""Up to this size length and content are joined: a copy is cheaper than a second system call."""

_ONE_RECEIVE_BYTES: Final = 64 * 1024
"""How much one receive may bring: nearly always a whole frame."""

_ENCODER: Final = msgspec.msgpack.Encoder()

F = TypeVar("F")


class Channel(Generic[F]):
    """One end of the socket pair. Only one thread may use it at a time.

    Args:
        sock: This end; the channel owns it from now on.
        incoming: Decodes what the other end sends: `REQUESTS` or `ANSWERS`.
        clock: For deadlines.
    """

    def __init__(
        self, sock: socket.socket, incoming: msgspec.msgpack.Decoder[F], clock: Clock
    ) -> None:
        self._socket = sock
        self._stream = TimedSocket(sock)
        self._incoming = incoming
        self._clock = clock
        self._ahead = memoryview(b"")
        """What came with the last frame and belongs to later ones."""

    def send(self, frame: Request | Answer, *, timeout_s: float | None = None) -> None:
        """Send a frame.

        Args:
            frame: The frame.
            timeout_s: How long the other end may take to read it; None for no limit.

        Raises:
            WireFormatError: It is longer than a frame may be; nothing was sent.
            OSError: The other end is gone, or (TimeoutError) does not read.
        """
        content = _ENCODER.encode(frame)
        if len(content) > MAX_FRAME_BYTES:
            raise WireFormatError(
                f"a frame of {len(content)} bytes is over the limit of {MAX_FRAME_BYTES}"
            )
        length = _LENGTH.pack(len(content))
        if len(content) <= _ONE_SEND_BYTES:
            self._send_all(memoryview(length + content), timeout_s)
        else:
            self._send_all(memoryview(length), timeout_s)
            self._send_all(memoryview(content), timeout_s)

    def receive(self, *, timeout_s: float | None = None) -> F:
        """Wait for a frame.

        Args:
            timeout_s: How long to wait for the whole frame; None for no limit.

        Returns:
            The frame.

        Raises:
            EOFError: The other end is gone.
            WireFormatError: The frame is too long or of an unexpected kind.
            MemoryError: There is not enough memory for it; it was skipped.
            OSError: The connection failed, or (TimeoutError) nothing came in time.
        """
        begin = self._ahead or self._block(timeout_s)
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while len(begin) < _LENGTH.size:
            begin = memoryview(bytes(begin) + self._block(self._left_s(deadline_s)))
        (length,) = _LENGTH.unpack_from(begin)
        if length > MAX_FRAME_BYTES:
            raise WireFormatError(f"a frame of {length} bytes is over the limit")
        end = _LENGTH.size + length
        content, self._ahead = begin[_LENGTH.size : end], begin[end:]
        if len(content) < length:
            content = self._completed(content, length, deadline_s)
        try:
            return self._incoming.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise WireFormatError(f"not a frame that was expected: {exc}") from exc

    def hang_up(self) -> None:
        """End the connection; threads that wait at either end wake. Any thread may call this."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end has ended it already

    def close(self) -> None:
        """Give the socket back; no thread may be using the channel."""
        self._socket.close()

    def _send_all(self, content: memoryview, timeout_s: float | None) -> None:
        deadline_s = None
        while True:
            content = content[self._stream.send(content, timeout_s) :]
            if not content:
                return
            if timeout_s is not None:
                deadline_s = deadline_s or self._clock.monotonic_s() + timeout_s
                timeout_s = self._left_s(deadline_s)

    def _block(self, timeout_s: float | None) -> memoryview:
        """Receive what is there: a part of a frame, one whole, or several.

        Raises:
            EOFError: The other end is gone.
        """
        block = self._stream.receive(_ONE_RECEIVE_BYTES, timeout_s)
        if not block:
            raise EOFError
        return memoryview(block)

    def _completed(self, begin: memoryview, length: int, deadline_s: float | None) -> memoryview:
        """Return the content of a frame of which some has come.

        Raises:
            MemoryError: There is not enough memory for it; it was skipped.
        """
        try:
            content = memoryview(bytearray(length))
        except MemoryError:
            self._skip(length - len(begin), deadline_s)
            raise
        content[: len(begin)] = begin
        left = content[len(begin) :]
        while left:
            left = left[self._receive_into(left, deadline_s) :]
        return content

    def _left_s(self, deadline_s: float | None) -> float | None:
        if deadline_s is None:
            return None
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _receive_into(self, view: memoryview, deadline_s: float | None) -> int:
        received = self._stream.receive_into(view, self._left_s(deadline_s))
        if received == 0:
            raise EOFError
        return received

    def _skip(self, count: int, deadline_s: float | None) -> None:
        """Skip a frame for which there is no memory, so that the next one can be read."""
        scrap = memoryview(bytearray(min(count, _ONE_SEND_BYTES)))
        while count:
            count -= self._receive_into(scrap[:count], deadline_s)
