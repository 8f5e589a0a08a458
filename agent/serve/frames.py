"""The messages between the supervisor and a worker process over a socket pair.

A frame is its length in four bytes, big endian, and one of the structs below as MessagePack. The
supervisor sends requests and the worker answers. The supervisor may send several inference requests
at once; the worker answers each of them as soon as it can.

Rules:
- No frame is longer than `MAX_FRAME_BYTES`. A longer frame is neither sent nor read.
- Tensors travel as the bytes that the client sent; only the worker reads them.
- Decoding a frame copies no bytes: the views keep the frame in memory.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from agent.serve.capture import Capture, Captured, Missed
from agent.serve.regions import Region
from agent.timed_socket import TimedSocket
from wire.clock import Clock
from wire.codec import to_json
from wire.errors import WireFormatError
from wire.package.variant import VariantInfo

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
NO_MEMORY: Final = "agent.worker.memory"
"""Code of a failure: there is not enough memory for the request."""

RETRY_AFTER: Final = {"Retry-After": "1"}
"""Header of an answer that tells the client to try again later."""

MAX_ERROR_CHARACTERS: Final = 500
_LENGTH: Final = struct.Struct(">I")
_ONE_SEND_BYTES: Final = 64 * 1024
"""Up to this size length and content are joined: a copy is cheaper than a second system call."""

_ONE_RECEIVE_BYTES: Final = 64 * 1024
"""How much one receive may bring: nearly always a whole frame."""

_ENCODER: Final = msgspec.msgpack.Encoder()

F = TypeVar("F")


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The name and version of the model that a worker puts into its answers."""

    name: str
    version: str
    parameters: dict[str, str] = {}
    """Put into every response, such as the names of the variant and the device."""

    names_answers: bool = False
    """Whether each answer gets an id if its request has none, and the supervisor hears of it."""


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """What a signed index says of a file."""

    path: str
    """Relative to the directory of the package."""

    size_bytes: int
    sha256: str


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load a variant. This is the first message to a worker."""

    stands_back: bool = False
    """Whether all else on the device has the processor, the disk and the memory first."""

    package_directory: str
    files: tuple[Signed, ...] = ()
    """All that the variant needs; each is compared before it is loaded. Empty to compare none."""

    variant_directory: str
    asset_directory: str | None
    """Directory of the golden samples; None if the variant has none."""

    info: VariantInfo
    threads: int
    memory_bytes: int | None
    """Greatest growth of the data segment from here on, in bytes."""

    model: ModelIdentity


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The variant is loaded and warm."""

    description: dict[str, Any]
    """A `SessionDescription` as plain values."""

    load_ms: float
    warm_up_ms: float
    rss_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The worker could not do what it was asked."""

    code: str
    message: str
    remedy: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An inference request of the Open Inference Protocol."""

    header_length: int | None
    """Length of the JSON at the start of the body; None when all of it is JSON."""

    body: memoryview
    regions: tuple[Region, ...] = ()
    """The client's shared memory, if the request names some."""


class Infer(msgspec.Struct, frozen=True, kw_only=True, tag="infer"):
    """Answer inference requests, with one or several `Replies`."""

    requests: tuple[Asked, ...]
    """Never empty."""

    most_rows: int = 1
    """Samples that may be joined into one run of the model."""

    stream: bool = False
    """Whether to run the samples of a request one at a time, which bounds its memory."""

    capture: Capture | None = None
    """Which requests the operator wants; None for none."""


class Seen(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How many samples fell into a bin of a distribution that the package carries."""

    tensor: str
    """`input.NAME` or `output.NAME`."""

    measure: str
    bin: int
    samples: int


class Given(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An answer that an application may say something about later."""

    id: str
    classes: tuple[int, ...] = ()
    """The class of each sample; empty if the model tells no classes apart, or for too many."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP answer without the headers that the HTTP server adds."""

    status: int
    headers: dict[str, str]
    body: memoryview
    compute_ms: float = 0.0
    """Time in the runtime; a joined request counts its share of the run."""

    place: int = 0
    """Position of the request in `Infer`."""

    joined: int = 1
    """How many requests the same run of the model answered."""

    samples: int = 1
    """How many samples the request holds."""

    apart: str = ""
    """Why earlier requests could not be joined, if that is not yet reported; else empty."""

    seen: tuple[Seen, ...] = ()
    """How samples of earlier requests were distributed, if that is not yet reported."""

    captured: Captured | None = None
    """A sample of an earlier request, if one was taken."""

    missed: tuple[Missed, ...] = ()
    """What was not taken of earlier requests, if that is not yet reported."""

    given: Given | None = None
    """How the answer can be named later, where the device takes feedback."""

    code: str = ""
    """Code of the error for which the router refused the request; empty for all other answers."""

    @classmethod
    def refusal(cls, status: int, message: str, headers: dict[str, str] | None = None) -> Reply:
        """Return an answer that says what is wrong, in the form of the Open Inference Protocol.

        Args:
            status: HTTP status.
            message: What is wrong, in one line.
            headers: Further headers.
        """
        text = " ".join(message.split())[:MAX_ERROR_CHARACTERS]
        return cls(
            status=status,
            headers={"Content-Type": "application/json"} | (headers or {}),
            body=memoryview(to_json({"error": text.encode(errors="replace").decode()})),
        )


class Replies(msgspec.Struct, frozen=True, kw_only=True, tag="replies"):
    """Answers to some of the requests of an `Infer`."""

    replies: tuple[Reply, ...]


class Compare(msgspec.Struct, frozen=True, kw_only=True, tag="compare"):
    """Run a request that another release has answered, and tell how the answers differ."""

    request: Asked
    answer: memoryview
    """The body of the answer of the other release."""

    answer_header_length: int | None
    """Length of the JSON at its start; None when all of it is JSON."""


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """How two releases answered the same request. The answer itself stays in the worker."""

    agrees: bool = False
    difference: float | None = None
    """The greatest difference of any number in the two answers; None if there is none to tell."""

    compute_ms: float = 0.0
    """Time in the runtime."""

    unlike: str = ""
    """Why the answers cannot be compared, which is no fault of this release; else empty."""

    fault: str = ""
    """Why this release has no answer; else empty."""


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Run the golden samples."""

    measure: bool = False
    """Whether the variant is new here. Then the declared processing must work on the outputs too,
    and the latency of one sample is measured."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True, tag="probed"):
    """How a variant did on its golden samples."""

    passed: bool
    samples: int
    agreement: float
    """Share of samples whose first answer equals the reference's."""

    worst_ratio: float
    """Greatest error over its tolerance; 1.0 is the most that passes."""

    detail: str
    """The first thing that was wrong; empty if the variant passed."""

    latency_ms: float | None = None
    """Latency of one sample that runs alone; None if it was not measured."""


Request: TypeAlias = Load | Infer | Compare | Probe
Answer: TypeAlias = Ready | Failed | Replies | Compared | ProbeResult
REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
ANSWERS: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


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
