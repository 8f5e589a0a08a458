"""Every message between a device and the controller.

Rules:
- Each message has a schema version. A reader accepts unknown fields and refuses an unknown version.
- Control messages are JSON; telemetry is MessagePack.
- What brings blobs to devices is in `wire.delivery`, what measures packages on them in
  `wire.measuring`, and what asks them to report in `wire.reporting`.
- A receiver trusts a device's message only as far as the broker guarantees its topic: the `device`
  field must equal the topic's, and the receiver checks that.
- Desired states and the answers to enrolments travel signed by the `director` role
  (`wire.trust.envelope`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec

from wire.batch_clock import BatchClock
from wire.codec import from_json, from_msgpack
from wire.errors import WireFormatError
from wire.packed import is_packed, unpacked
from wire.policy import PolicySpec
from wire.profile import DeviceProfile

SCHEMA_VERSION = 1
DESIRED_PAYLOAD_TYPE = "application/vnd.edgefleet.desired-state+json"
CONTROLLER_START_PAYLOAD_TYPE = "application/vnd.edgefleet.controller-start+json"
ENROL_PAYLOAD_TYPE = "application/vnd.edgefleet.enrol-answer+json"
MAX_MESSAGE_BYTES = 256 * 1024
"""Brokers are commonly limited to packets of this size."""

MAX_REVISION: Final = 2**53 - 1
"""The greatest revision of a desired state; JSON readers lose digits of larger integers."""

MAX_REVISION_STEP: Final = 2**20
"""How far apart two revisions may be that follow one another: no fleet sends one device a million
desired states while it is away. A larger step is believed only of a desired state that names the
present start of the agent."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all messages have."""

    may_be_packed: ClassVar[bool] = False
    """Whether it may come compressed (`wire.packed`)."""

    schema_version: int = SCHEMA_VERSION


M = TypeVar("M", bound=Message)


class EnrolRequest(Message, frozen=True, kw_only=True):
    """A device asks to join the fleet."""

    device: str
    token: str
    """The enrolment token, a secret that the operator gave to the device; empty if it has none. A
    device that is enrolled needs none: its key shows who it is."""

    public_key: str
    """The device's own Ed25519 key in base64; an identifier that is enrolled already is accepted
    again only with the same key."""

    password: str
    """The broker password that the device chose for itself."""

    signature: str
    """Base64 over `wire.enrolment.enrol_proof`, or with a challenge over `challenged_proof`: shows
    that the device holds the private key."""

    profile: DeviceProfile
    labels: dict[str, str] = {}
    agent_version: str = ""
    nonce: str | msgspec.UnsetType = msgspec.UNSET
    """New for each attempt: so the answer to an earlier one is not the answer to this one."""

    client_id: str | msgspec.UnsetType = msgspec.UNSET
    """The client identifier to which the account is bound (`wire.enrolment.client_id`); unset for
    the name of the device, as older agents connect."""

    doubt: str | msgspec.UnsetType = msgspec.UNSET
    """Why the device does not believe the answer to its last attempt; unset if it got none."""

    challenge: str | msgspec.UnsetType = msgspec.UNSET
    """The challenge of the controller's answer; unset in a request that nobody has answered."""

    csr: str | msgspec.UnsetType = msgspec.UNSET
    """A certificate signing request, PEM, by the key with which the device speaks TLS; unset by
    agents that know passwords alone."""

    csr_signature: str | msgspec.UnsetType = msgspec.UNSET
    """Base64 over `wire.enrolment.csr_proof` by the device's own key."""

    serial: str | msgspec.UnsetType = msgspec.UNSET
    """The serial number that the device reads of its own hardware. It proves nothing by itself.
    Unset by a device that finds none."""


class DeviceCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with which a device connects to the broker, and where."""

    pem: str
    port: int
    """Where the broker listens for devices with certificates; the host is the same."""

    begins_at_s: float
    """Wall time at the controller when it was made, seconds since 1970."""

    ends_at_s: float


class MetadataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of metadata."""

    name: str
    """As TUF names it with consistent snapshots, without `.json`: `timestamp`, `3.snapshot`."""

    content: str
    """JSON, as it was signed."""


class EnrolReply(Message, frozen=True, kw_only=True):
    """The controller's answer to an enrolment. It holds no secret: others may read it."""

    device: str
    accepted: bool
    reason: str = ""
    signed: str | msgspec.UnsetType = msgspec.UNSET
    """The envelope around an `EnrolAnswer`. Only it counts; older agents read the fields above."""

    metadata: tuple[MetadataFile, ...] | msgspec.UnsetType = msgspec.UNSET
    """What a device needs to know whose signature that must be; it checks it first."""


class EnrolAnswer(Message, frozen=True, kw_only=True):
    """What the director signs in answer to one request to enrol."""

    device: str
    accepted: bool
    request_sha256: str
    """SHA-256 of the request as it was received."""

    reason: str = ""
    challenge: str | msgspec.UnsetType = msgspec.UNSET
    """With a refusal: what a device that is enrolled puts into its next request, at once. So it
    shows that it holds its key now; a recorded request shows only that it once did."""

    certificate: DeviceCertificate | msgspec.UnsetType = msgspec.UNSET
    """What the device connects with; unset by a controller that made an account with the
    password."""

    ask_again_s: float | msgspec.UnsetType = msgspec.UNSET
    """With a refusal: the device waits until an operator lets it in, and asks again after so long.
    Older agents take it as a refusal, and ask again at their own pace."""


class ControllerStart(Message, frozen=True, kw_only=True):
    """What the director signs when its controller connects, for other controllers."""

    start_id: str
    """Random, new for each start of a controller."""

    at_s: float
    """Wall time of the start, seconds since 1970."""

    share: str | msgspec.UnsetType = msgspec.UNSET
    """The group of controllers with which it shares its work, and their database, if it does."""


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a device has."""

    name: str
    revision: int
    """The newest revision of the model that the device has accepted (`wire.desired.ModelState`)."""

    release: str | None
    """Digest of the package that is active."""

    variant: str | None
    """Name of the variant that serves."""


class MetadataVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of the metadata that a device trusts; 0 for none."""

    root: int
    timestamp: int = 0
    snapshot: int = 0
    targets: int = 0
    roles: dict[str, int] = {}
    """Of lists of releases, by role."""

    models: tuple[str, ...] = ()
    """The models whose lists the device needs, beside those that it is to run."""

    lacks_desired: bool = False
    """Whether the desired state that it follows has expired before it was done."""

    fleet: str | msgspec.UnsetType = msgspec.UNSET
    """The name of the fleet in the root that the device came with; two roots have two names."""

    lacks_files: bool | msgspec.UnsetType = msgspec.UNSET
    """True where files of it may be damaged or lost: the device needs all of them once more."""


class Hello(Message, frozen=True, kw_only=True):
    """A device reports what it is and has, on every connect; it gets a desired state if it lags."""

    device: str
    boot_id: str
    agent_version: str
    profile: DeviceProfile
    runtimes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The runtimes of the profile that the device has; unset where it has all of them."""

    peer_url: str | msgspec.UnsetType = msgspec.UNSET
    """Where other devices of its site can fetch what it has, such as `http://192.168.1.20:8471`;
    unset if it serves nobody."""

    revision: int
    """The newest desired-state revision that the device has accepted; 0 for none, and for a device
    that has lost its record."""

    release: str | None
    """Digest of the package that is active."""

    variant: str | None
    """Name of the variant that serves."""

    models: tuple[ServedModel, ...] | msgspec.UnsetType = msgspec.UNSET
    """All models of the device; `release` and `variant` are those of the first one. Unset by agents
    that have one model and no name for it."""

    desired_form: int | msgspec.UnsetType = msgspec.UNSET
    """The newest form of a desired state that the device reads (`wire.desired`); unset for 1."""

    shadows: bool | msgspec.UnsetType = msgspec.UNSET
    """False where its owner lets it run no shadows; unset where it runs them."""

    metadata: MetadataVersions | msgspec.UnsetType = msgspec.UNSET
    """The trusted metadata that the device has; it is sent what is newer. Unset where a trust file
    takes its place."""


class Presence(Message, frozen=True, kw_only=True):
    """Whether a device is connected; `online=False` is also its last will."""

    device: str
    online: bool
    boot_id: str


class ReleaseRef(msgspec.Struct, frozen=True, kw_only=True):
    """A release: the package and where its signed index is."""

    name: str
    version: str
    digest: str
    """SHA-256 of the package index: the name of the package."""

    envelope_sha256: str
    """SHA-256 of the envelope around the index, which is fetched like any blob."""

    envelope_size_bytes: int


class DesiredState(Message, frozen=True, kw_only=True):
    """What one device should run, with one model at most. Signed; its revision only grows.

    It is form 1 of a desired state; `wire.desired` has form 2 and reads both.
    """

    device: str
    revision: int
    issued_at_s: float
    release: ReleaseRef | None
    rollout: str | None = None
    policy: PolicySpec = PolicySpec()
    boot_id: str | msgspec.UnsetType = msgspec.UNSET
    """The start of the agent that the controller knew of when it signed this: a device that has
    lost its record sees by it that this is no recording. Unset by controllers that do not tell."""

    has_sources: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the controller answers a `SourceRequest`; unset by one that has only messages."""


InstallPhase = Literal[
    "idle",
    "preflight",
    "fetching",
    "verifying",
    "staging",
    "probing",
    "switching",
    "confirming",
    "reverting",
]
InstallOutcome = Literal["running", "succeeded", "failed"]


class InstallReport(Message, frozen=True, kw_only=True):
    """A device's progress with a desired state. The last report for a revision is its outcome."""

    device: str
    boot_id: str | msgspec.UnsetType = msgspec.UNSET
    """The start of the agent, as in its hello; unset by agents that do not count their reports."""

    sequence: int | msgspec.UnsetType = msgspec.UNSET
    """Grows with each report of one start."""

    revision: int
    digest: str | None
    """The package that was to be installed."""

    phase: InstallPhase
    outcome: InstallOutcome
    active: str | None
    """The package that serves now."""

    variant: str | None = None
    error_code: str = ""
    detail: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    at_s: float = 0.0
    rate_bytes_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """How fast the package comes: an exponentially weighted mean of some 10 s
    (`agent.install.progress.Rate` says which, and its source). What the device had already does not
    count. Unset while it is unknown or nothing is fetched, and by older agents."""

    model: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the model that the report is about; unset by agents that have one model."""

    bytes_by_source: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """How many of the bytes of the package came which way, so far: `local`, `delta`, `http`, `mqtt`
    or `file` (`wire.progress`). A reader takes any name. Unset before anything came, and by older
    agents."""


class Refusal(Message, frozen=True, kw_only=True):
    """A device does not accept a desired state that it received, and says why."""

    device: str
    sha256: str
    """SHA-256 of the desired state as it was received, signatures included."""

    error_code: str
    detail: str = ""
    at_s: float = 0.0


class HistogramPoint(msgspec.Struct, frozen=True, kw_only=True, tag="histogram"):
    """An OpenTelemetry exponential histogram of one minute (or a part of it), as a delta."""

    metric: str
    """Ends in its unit, such as `inference_latency_ms`."""

    minute: int
    """Wall time, minutes since the epoch."""

    attributes: dict[str, str]
    blob: bytes
    """As `telemetry.histogram` encodes it."""


class SumPoint(msgspec.Struct, frozen=True, kw_only=True, tag="sum"):
    """A counter's growth within one minute (or a part of it)."""

    metric: str
    minute: int
    attributes: dict[str, str]
    value: float


class GaugePoint(msgspec.Struct, frozen=True, kw_only=True, tag="gauge"):
    """Readings within one minute (or a part of it)."""

    metric: str
    minute: int
    attributes: dict[str, str]
    count: int
    total: float
    least: float
    greatest: float


Point = HistogramPoint | SumPoint | GaugePoint


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once and has a reason."""

    at_s: float
    kind: str
    """Such as `switch`, `fallback`, `install`, `worker`."""

    reason: str
    """One line for people."""

    data: dict[str, Any] = {}
    """The inputs of the decision, the candidates and why each lost."""


class TelemetryBatch(Message, frozen=True, kw_only=True):
    """Points and events; counted once by (device, boot, sequence). MessagePack.

    It may be compressed (`wire.packed`), once an acknowledgement has said that it is read so.
    """

    may_be_packed: ClassVar[bool] = True

    device: str
    boot_id: str
    sequence: int
    points: tuple[Point, ...] = ()
    events: tuple[Event, ...] = ()
    dropped: int = 0
    """Batches, and parts of batches, that the device dropped since the last one because its spool
    was full."""

    clock: BatchClock | msgspec.UnsetType = msgspec.UNSET
    """What the device's clocks showed; unset by agents that do not compare them."""

    answers: str | msgspec.UnsetType = msgspec.UNSET
    """The request to report (`wire.reporting`) that this batch, and what was sent before it, is the
    answer to."""


class TelemetryAck(Message, frozen=True, kw_only=True):
    """The controller has stored these batches; the device may forget them."""

    boot_id: str
    sequences: tuple[int, ...]
    reads: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The compressions in which batches may come (`wire.packed.readable`); unset by older
    controllers, which read plain batches alone."""

    report_every_s: float | msgspec.UnsetType = msgspec.UNSET
    """How often the controller wants figures at most, so that a fleet does not send more than it
    can store; the device bounds it. Unset for as often as the device likes."""

    at_s: float | msgspec.UnsetType = msgspec.UNSET
    """Wall time at the controller, seconds since 1970; unset by older controllers."""

    sent_steady_s: float | msgspec.UnsetType = msgspec.UNSET
    """That of the newest batch which this answers (`wire.batch_clock`); unset if it had none."""

    again: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Batches that are not stored, because their times may be wrong: the device is to send them
    again with how far its clock is ahead, or that it cannot know. Unset for none."""


def decode_message(data: bytes, kind: type[M], *, packed: bool = False) -> M:
    """Decode a message and check its schema version.

    Args:
        data: The payload as received.
        kind: The message that this topic carries.
        packed: MessagePack rather than JSON.

    Returns:
        The message.

    Raises:
        WireFormatError: Too large, malformed, or of another schema version.
    """
    if packed and kind.may_be_packed and is_packed(data):
        data = unpacked(data, MAX_MESSAGE_BYTES)
    decode = from_msgpack if packed else from_json
    message = decode(data, kind, limit_bytes=MAX_MESSAGE_BYTES)
    if message.schema_version != SCHEMA_VERSION:
        raise WireFormatError(
            f"{kind.__name__}: schema version {message.schema_version} is not {SCHEMA_VERSION}"
        )
    return message
