"""The messages between the supervisor and a worker process (`agent.serve.channel`).

The supervisor sends requests and the worker answers. The supervisor may send several inference
requests at once; the worker answers each of them as soon as it can.

Rules:
- Tensors travel as the bytes that the client sent; only the worker reads them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from agent.serve.capture import Capture, Captured, Missed
from agent.serve.regions import Region
from wire.codec import to_json
from wire.package.variant import VariantInfo

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
NO_MEMORY: Final = "agent.worker.memory"
"""Code of a failure: there is not enough memory for the request."""

RETRY_AFTER: Final = {"Retry-After": "1"}
"""Header of an answer that tells the client to try again later."""

MAX_ERROR_CHARACTERS: Final = 500


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
