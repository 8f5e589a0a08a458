"""The requests and answers of the HTTP API about devices, and what they run and should run."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.domain.release_drift import Cause
from controller.domain.states import DeviceState
from controller.schemas import Request


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
