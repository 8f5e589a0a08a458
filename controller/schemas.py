"""What the HTTP API takes and gives. The command line is its client and reads the same types.

Rules:
- Times are seconds since the epoch (`_s`); sizes are bytes; digests are SHA-256 in hexadecimal.
- Unknown fields in a request are refused: a misspelt option must not be an ignored one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controller.domain.rollout_policy import StageState
from controller.domain.states import DeploymentState, DeviceState, ReleaseState, RolloutState
from wire.messages import PolicySpec

MAX_DEVICES = 10_000_000
MAX_WAIT_S = 366 * 86_400
MAX_PRIORITY = 1000
MAX_EXACT = 2**53
"""Beyond that, JSON readers lose digits."""

_SPEC = PolicySpec()
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Request(BaseModel):
    """A body that a client sends."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Fault(BaseModel):
    """Every answer with a status of 400 or more."""

    code: str
    """Stable name of the fault."""

    message: str
    remedy: str = ""


class Health(BaseModel):
    """Whether the controller works."""

    status: Literal["ok", "degraded"]
    broker_connected: bool
    version: str


class TokenRequest(Request):
    """A new enrolment token."""

    uses: int = Field(default=1, ge=1, le=1_000_000)
    expires_in_s: int = Field(default=86_400, ge=1, le=366 * 86_400)
    labels: dict[str, str] = {}


class Token(BaseModel):
    """The secret, shown once."""

    token: str
    uses: int
    expires_at_s: float


class Device(BaseModel):
    """A device as the controller knows it."""

    id: str
    state: DeviceState
    online: bool
    profile: str
    labels: dict[str, str]
    agent_version: str
    release: str | None
    """`name:version` of the package that is active, or its digest if it is not one of ours."""

    variant: str | None
    desired_release: str | None
    revision: int
    """Of the desired state that was last issued."""

    reported_revision: int
    policy: str | None = None
    """Name of the policy that holds for it; None for the default one."""

    policy_accepted: bool = False
    """Whether it has accepted that; it goes by it unless its `agent.toml` sets its own."""

    phase: str
    enrolled_at_s: float
    last_seen_at_s: float | None
    last_error: str = ""


class DeviceUpdate(Request):
    """A change of a device by the operator."""

    state: DeviceState | None = None
    labels: dict[str, str] | None = None


class PolicyObjective(Request):
    """What `adaptive` is to keep; see `[policy.objective]` in docs/policies.md."""

    model_config = ConfigDict(strict=True)

    min_retention: float = _SPEC.aim.min_retention
    deadline_ms: float | None = _SPEC.aim.deadline_ms
    deadline_probability: float = _SPEC.aim.deadline_probability
    battery_lasts_s: float = _SPEC.aim.battery_lasts_s


class PolicySettings(Request):
    """How devices choose among their variants: the keys of `[policy]` in `agent.toml`."""

    model_config = ConfigDict(strict=True)

    kind: Literal["rules", "adaptive"] = _SPEC.kind
    hot_headroom: float = _SPEC.hot_headroom
    cool_headroom: float = _SPEC.cool_headroom
    low_battery_ratio: float = _SPEC.low_battery_ratio
    ok_battery_ratio: float = _SPEC.ok_battery_ratio
    low_memory_bytes: int = Field(default=_SPEC.low_memory_bytes, le=MAX_EXACT)
    dwell_s: float = _SPEC.dwell_s
    objective: PolicyObjective | None = None
    """None for the default one."""


class PolicyRequest(Request):
    """A policy for the devices that match a selector."""

    selector: str = ""
    """Label expression; empty means every device."""

    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Of the policies that a device matches, the one with the highest priority holds, of equal
    priorities the first by name."""

    policy: PolicySettings


class Policy(BaseModel):
    """A policy and how far it has come."""

    name: str
    selector: str
    priority: int
    policy: PolicySettings
    changed_at_s: float
    devices: int
    """To so many devices it has been issued; one that has no release yet gets it with the first."""

    accepted: int
    """So many of them have accepted it."""


class BlobRef(BaseModel):
    """A stored blob."""

    sha256: Digest
    size_bytes: int


class ReleaseRequest(Request):
    """Publish a package whose blobs have been uploaded."""

    envelope_sha256: Digest


class VariantSummary(BaseModel):
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


class Release(BaseModel):
    """A published package."""

    name: str
    version: str
    digest: Digest
    size_bytes: int
    state: ReleaseState
    published_at_s: float
    variants: list[VariantSummary] = []


class Stage(Request):
    """One step of a rollout: go on until this many devices run the release."""

    count: int | None = Field(default=None, ge=1, le=MAX_DEVICES)
    percent: float | None = Field(default=None, gt=0, le=100)


class RolloutRequest(Request):
    """A new rollout."""

    release: str
    """`name:version` or a digest."""

    selector: str = ""
    """Label expression; empty selects every enrolled device."""

    stages: list[Stage] = [Stage(percent=100)]
    max_in_flight: int = Field(default=100, ge=1, le=MAX_DEVICES)
    soak_s: float = Field(default=0, ge=0, le=MAX_WAIT_S)
    """How long a finished stage must stay good before the next begins."""

    device_deadline_s: float = Field(default=3600, gt=0, le=MAX_WAIT_S)
    """A device that has not finished by then counts as failed."""

    max_failures: int = Field(default=0, ge=0, le=MAX_DEVICES)
    """More failed devices than this halt the rollout."""

    max_failure_percent: float | None = Field(default=None, ge=0, le=100)
    """With `min_finished`: a larger share of failed among finished devices halts it too."""

    min_finished: int = Field(default=10, ge=1, le=MAX_DEVICES)
    approval: bool = False
    """Wait for `approve` between stages."""


class RollbackRequest(Request):
    """Bring the devices that a rollout touched to another release, stage by stage."""

    release: str
    """`name:version` or a digest."""


class StageProgress(BaseModel):
    """How far a stage is."""

    number: int
    """From 1."""

    target: int
    """How many devices, with all earlier stages, this stage brings to the release."""

    state: StageState


class Deployment(BaseModel):
    """One device's part in a rollout."""

    device: str
    state: DeploymentState
    stage: int
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    error_code: str = ""
    detail: str = ""
    started_at_s: float | None = None
    finished_at_s: float | None = None


class RolloutEvent(BaseModel):
    """A decision and its reason."""

    at_s: float
    action: str
    reason: str


class Rollout(BaseModel):
    """A rollout and how far it is."""

    id: str
    release: str
    previous: dict[str, int] = {}
    """How many devices ran which release before."""

    selector: str
    rollback_of: str | None = None
    """The rollout that this one undoes; no further device joins it."""

    state: RolloutState
    reason: str = ""
    """Of the last decision."""

    created_at_s: float
    finished_at_s: float | None
    stages: list[StageProgress]
    counts: dict[DeploymentState, int]
    deployments: list[Deployment] = []
    events: list[RolloutEvent] = []


class TelemetryTable(BaseModel):
    """The answer to a telemetry query."""

    columns: list[str]
    rows: list[list[Any]]


class DeviceEvent(BaseModel):
    """Something that happened on a device, with its reason."""

    device: str
    at_s: float
    kind: str
    reason: str
    data: dict[str, Any] = {}
