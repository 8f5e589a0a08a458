"""The requests and answers of the HTTP API. The command line, its client, uses the same types.

They are plain dataclasses: the API checks requests with pydantic, which reads them too, and the
command line decodes answers with msgspec, so that it starts without pydantic.

Rules:
- The API checks what a request holds; a client only builds it.
- Times are seconds since the epoch (`_s`); sizes are bytes; digests are SHA-256 in hexadecimal.
- Unknown fields in a request are refused, so that a misspelt option is not silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from controller.domain.release_drift import Cause
from controller.domain.states import AUTO, DeviceState, ReleaseState, TokenState, WaitingState

MAX_TEXT_CHARS = 4096
"""More than any text of a request needs. With this bound pydantic looks into every text. So it also
refuses one that is not Unicode, such as `"\\ud800"` in JSON, which no database can store."""

MAX_METADATA_CHARS = 256 * 1024
"""Of one file of trusted metadata."""


class Bounds:
    """Marks a number that the API refuses outside its bounds.

    Args:
        ge: It is at least this.
        gt: It is more than this.
        le: It is at most this.
        strict: Text is not accepted as a number.
    """

    def __init__(
        self,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        strict: bool = False,
    ) -> None:
        given = {"ge": ge, "gt": gt, "le": le, "strict": strict or None}
        self._bounds = {name: value for name, value in given.items() if value is not None}

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], dict[str, object]]
    ) -> dict[str, object]:
        """Return pydantic's schema of the type, with the bounds added."""
        return {**handler(source), **self._bounds}


Number = Annotated[float, Bounds(strict=True)]


@dataclass(kw_only=True)
class Request:
    """A body that a client sends."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "allow_inf_nan": False,
        "str_max_length": MAX_TEXT_CHARS,
    }


def given_fields(request: Request) -> dict[str, Any]:
    """Return the fields of a request that are not None."""
    return asdict(
        request,
        dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None},
    )


@dataclass(kw_only=True)
class Fault:
    """Every answer with a status of 400 or more."""

    code: str
    """Stable name of the fault."""

    message: str
    remedy: str = ""
    expression: str = ""
    """The selector at fault; empty where none is."""

    character: int = 0
    """Which character of it is wrong, from 1; 0 where none is."""


@dataclass(kw_only=True)
class Health:
    """Whether the controller works."""

    status: Literal["ok", "degraded"]
    broker_connected: bool
    version: str
    downloads_served: bool = False
    """Whether devices can download packages from this controller by HTTP, beside MQTT."""

    needs: list[str] = field(default_factory=list)
    """What it lacks to work, or soon will, one line for each; never empty while the status is
    `degraded`."""


@dataclass(kw_only=True)
class TokenRequest(Request):
    """A new enrolment token."""

    uses: Annotated[int, Bounds(ge=1, le=1_000_000)] = 1
    expires_in_s: Annotated[int, Bounds(ge=1, le=366 * 86_400)] = 86_400
    labels: dict[str, str] = field(default_factory=dict)
    accept: str = AUTO
    """Which devices enrol by themselves: `auto` for all, `by-hand` for none, else a selector over
    what they say of themselves. The others wait until an operator lets them in."""


@dataclass(kw_only=True)
class Token:
    """The secret, shown once."""

    id: str
    """Its account at the broker, by which it is listed and revoked."""

    token: str
    uses: int
    expires_at_s: float


@dataclass(kw_only=True)
class TokenSummary:
    """What is known of a token; the token itself is kept nowhere."""

    id: str
    """Its account at the broker."""

    state: TokenState
    uses_left: int
    labels: dict[str, str]
    accepts: str
    """`auto`, `by-hand` or a selector, as the token was made."""

    created_at_s: float
    expires_at_s: float
    used_at_s: float | None


@dataclass(kw_only=True)
class DriftedModel:
    """A device and a model of which it runs another release than it should."""

    device: str
    model: str
    online: bool
    last_seen_at_s: float | None
    release: str | None
    """`name:version` that it says is active, or a digest that nobody published; null for none."""

    desired_release: str
    rollout: str | None
    """The rollout that gave it the release."""

    cause: Cause
    since_s: float
    """Since when that is so, or since its desired state was made if nothing tells more."""

    detail: str
    """What the device said of it; empty for nothing."""


@dataclass(kw_only=True)
class WaitingDevice:
    """A device that asked to enrol and is not let in yet: what it said when it asked first."""

    id: str
    """The identifier that it asks for."""

    state: WaitingState
    public_key: str
    serial: str
    """The serial number that it says it has; empty for none."""

    profile_name: str
    architecture: str
    agent_version: str
    labels: dict[str, str]
    """Those that it gets: its own and its token's."""

    token: str
    """The token with which it asked, as `fleet token list` names it."""

    why: str = ""
    """Why it is not let in by itself, as one line."""

    asked_at_s: float
    last_asked_at_s: float


@dataclass(kw_only=True)
class Transfer:
    """The transfer of a package to a device, as the device reported it last."""

    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float | None
    """Smoothed over some 10 s; None while it is unknown."""

    rest_s: float | None
    """Expected time until all has come; None if it is unknown, or the news is too old."""

    news_age_s: float
    """How long ago the device reported this."""

    bytes_by_source: dict[str, int] = field(default_factory=dict)
    """How much of the package came which way: `local`, `delta`, `http`, `mqtt`, `file`."""


@dataclass(kw_only=True)
class DeviceModel:
    """A model of a device."""

    name: str
    """Empty for a package that is not one of ours, on a device that has one model."""

    release: str | None
    """`name:version` of the package that is active, or its digest if it is not one of ours."""

    variant: str | None
    unloaded: bool = False
    """Whether the device has the release and lets no variant of it serve: a client has unloaded the
    model, or it is parked."""

    desired_release: str | None
    drifted: bool = False
    policy: str | None = None
    """Name of the policy that applies to it; None for the default one."""

    policy_accepted: bool = False
    phase: str = ""
    waits_for: str = ""
    transfer: Transfer | None = None
    last_error: str = ""
    """How its last install failed; empty if it did not."""


@dataclass(kw_only=True)
class Device:
    """A device as the controller knows it."""

    id: str
    state: DeviceState
    online: bool
    profile: str
    runtimes: list[str] | None = None
    """Those of its profile that it has; None where it has all of them, or did not say."""

    peer_url: str | None = None
    """Where it serves the devices of its site, if it does."""

    peer_fault: str = ""
    """Why none of them is told; empty if they may be."""

    trust_file: bool | None = None
    """Whether it trusts keys in a trust file, which never change, and not the fleet's metadata;
    null until it has said so."""

    lent: bool = False
    """Whether it may be asked to measure packages, if its own settings allow it."""

    held_out_until_s: float | None = None
    """Until when it is held out of rollouts because its installs failed; null if it is not."""

    held_out_reason: str = ""

    labels: dict[str, str]
    """What the operator calls it."""

    attributes: dict[str, str | int | float | list[str]] = field(default_factory=dict)
    """What the controller knows of it from itself, as selectors compare it; without what is not
    known."""

    agent_version: str
    models: list[DeviceModel] = field(default_factory=list)
    """Its models by name: those that it should run, and those that it says it has. What follows of
    releases, variants and policies is that of the first of them."""

    desired_form: int = 1
    """1 if its agent has only one model."""

    release: str | None
    """`name:version` of the package that is active, or its digest if it is not one of ours."""

    variant: str | None
    desired_release: str | None
    drifted: bool = False
    """Whether it runs another release of any model than it should, and no rollout is bringing that
    one."""

    revision: int
    """The revision of the desired state that was last issued."""

    reported_revision: int
    policy: str | None = None
    """Name of the policy that applies to it; None for the default one."""

    policy_accepted: bool = False
    """Whether the device accepted that policy, which it uses unless `agent.toml` sets another."""

    phase: str
    waits_for: str = ""
    """What its install waits for, in the words of the device, such as its window or a hook; empty
    if it does not wait."""

    transfer: Transfer | None = None
    """None while it fetches nothing, and until it has reported to this start of the controller."""

    enrolled_at_s: float
    certificate_ends_at_s: float | None = None
    """When the last certificate that it got ends; null if it has only had passwords."""

    last_seen_at_s: float | None
    last_error: str = ""
    clock_ahead_s: float | None = None
    """How far its clock is ahead, negative for behind, if it is wrong: the times of its telemetry
    are corrected by that."""


@dataclass(kw_only=True)
class DeviceUpdate(Request):
    """A change of a device by the operator."""

    state: DeviceState | None = None
    labels: dict[str, str] | None = None
    lent: bool | None = None
    """Whether it may be asked to measure packages."""

    may_enrol_again: bool | None = None
    """Whether a decommissioned device may be enrolled again, with this identifier and any key."""

    key_is_gone: bool = False
    """With `may_enrol_again`: nobody has the key of the device before, so another key need not wait
    until its certificate ends."""


@dataclass(kw_only=True)
class BlobRef:
    """A stored blob."""

    sha256: str
    size_bytes: int


@dataclass(kw_only=True)
class MetadataSubmission(Request):
    """Files of trusted metadata, as they were signed."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "str_max_length": MAX_METADATA_CHARS,
    }

    files: dict[str, str]
    """By the name that TUF gives a file, without `.json`, such as `2.root`."""


@dataclass(kw_only=True)
class RoleState:
    """A role of trusted metadata."""

    role: str
    version: int | None
    """None for a role without a file of its own, such as the director."""

    expires_at_s: float | None
    threshold: int
    keys: list[str]
    """Names of the keys that may sign it."""

    releases: int | None = None
    """How many releases it lists; None if it lists none by its kind."""


@dataclass(kw_only=True)
class MetadataState:
    """What trusted metadata says, in short."""

    fleet: str
    roles: list[RoleState]
    fault: str = ""
    """Why the controller cannot sign what is newest, and what to do; empty if it can."""

    trust_file_devices: int = 0
    """How many devices trust keys in a trust file, and so nothing of this."""

    unknown_devices: int = 0
    """How many devices have not said yet which of both they trust."""


@dataclass(kw_only=True)
class ReleaseRequest(Request):
    """Publish a package whose blobs have been uploaded."""

    envelope_sha256: str


@dataclass(kw_only=True)
class VariantSummary:
    """A variant of a release, for listings."""

    name: str
    runtime: str
    precision: str
    size_bytes: int
    profiles: list[str]
    accuracy: float | None
    retention: float | None
    latency_p50_ms: float | None
    peak_memory_bytes: int | None


@dataclass(kw_only=True)
class RunningDevice:
    """A device that runs a release."""

    device: str
    online: bool
    rollout: str | None
    """A rollout that brought the release to it."""

    previous: str | None
    """What a rollback of that rollout brings it to, as `name:version`; None if there is nothing."""


@dataclass(kw_only=True)
class KeptDelta:
    """A delta to a file of a release, which the controller keeps."""

    base: str
    """Digest of the file that it begins from; that of no bytes for a file that is compressed."""

    base_release: str | None
    """A release that has this file, as `name:version`."""

    size_bytes: int
    full_bytes: int
    """Size of the file that it leads to."""


@dataclass(kw_only=True)
class Release:
    """A published package."""

    name: str
    version: str
    digest: str
    size_bytes: int
    state: ReleaseState
    published_at_s: float
    variants: list[VariantSummary] = field(default_factory=list)
    running: list[RunningDevice] = field(default_factory=list)
    """The devices that run it; empty in a list of releases."""

    deltas: list[KeptDelta] = field(default_factory=list)
    """The deltas that the controller keeps to its files; empty in a list of releases."""

    envelope_sha256: str = ""
    """The blob that holds its signed index."""

    envelope_size_bytes: int = 0


@dataclass(kw_only=True)
class SignedDesired:
    """What a device should run, as the director sends it."""

    device: str
    revision: int
    release: str | None
    """Digest of the release, or of the first of them."""

    releases: list[str] = field(default_factory=list)
    """Digests of all releases, by the names of their models."""

    envelope: str
    """The signed document, in JSON."""
