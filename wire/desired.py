"""What one device should run: its models, each with its release, rollout and policy.

Rules:
- A desired state has one of three forms. Form 2 names the models. Form 1 has one release and no
  names; agents up to version 0.1 read only that one, and controllers up to that version send it.
  Form 3 is form 2 with windows, in which the device activates what it is ordered; it is sent only
  where there are some. A device that does not read it is sent form 2, without them.
- A model has the name of its package. A model that is not named is removed from the device, unless
  the desired state says that the others stay.
- Each model has the revision in which its release was given. A change of another model, or of a
  policy, does not change it, so reports about an install can be told apart.
- A reader takes all forms; what form 1 says has the same meaning in form 2.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.capture import CaptureRule
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.installs import ReleaseRef
from wire.messages import MAX_MESSAGE_BYTES, Message, decode_message
from wire.policy import PolicySpec
from wire.profile import NAME_PATTERN
from wire.shadow import ShadowRule
from wire.windows import window_faults

ONE_RELEASE: Final = 1
"""The form that has one release and no names."""

NAMED_MODELS: Final = 2
"""The form that names models."""

WINDOWS: Final = 3
"""Form 2, with the hours in which a device activates what it is ordered."""

MAX_MODELS: Final = 32
"""How many models one device may have: their state must stay small, and one decision is taken for
all of them."""

DESIRED_PAYLOAD_TYPE = "application/vnd.edgefleet.desired-state+json"

MAX_REVISION: Final = 2**53 - 1
"""The greatest revision of a desired state; JSON readers lose digits of larger integers."""

MAX_REVISION_STEP: Final = 2**20
"""How far apart two revisions may be that follow one another: no fleet sends one device a million
desired states while it is away. A larger step is believed only of a desired state that names the
present start of the agent."""


class DesiredState(Message, frozen=True, kw_only=True):
    """What one device should run, with one model at most. Signed; its revision only grows.

    It is form 1 of a desired state; `DesiredModels` is the newer ones.
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


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """What a device should run of one model."""

    name: str
    """The name of the model, which is that of its packages."""

    revision: int
    """The revision of the desired state that gave this release; reports of its install name it."""

    release: ReleaseRef | None
    """None if nothing is ordered: what the device has of the model stays."""

    rollout: str | None = None
    policy: PolicySpec = PolicySpec()
    capture: CaptureRule | msgspec.UnsetType = msgspec.UNSET
    """Which requests the device captures for its operator; unset for none."""

    windows: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The hours of its local time in which the device activates the release (`wire.windows`); unset
    for all of them."""

    @property
    def hours(self) -> tuple[str, ...]:
        """The windows; empty if there are none."""
        return () if isinstance(self.windows, msgspec.UnsetType) else self.windows

    shadow: ShadowRule | msgspec.UnsetType = msgspec.UNSET
    """Which release runs beside the one that serves, and is compared with it; unset for none."""


class DesiredModels(Message, frozen=True, kw_only=True):
    """What one device should run, form 2. Signed; its revision only grows."""

    schema_version: int = NAMED_MODELS
    device: str
    revision: int
    issued_at_s: float
    models: tuple[ModelState, ...] = ()
    keeps_others: bool = False
    """Whether models that are not named stay; otherwise they are removed."""

    boot_id: str | msgspec.UnsetType = msgspec.UNSET
    """The start of the agent that the controller knew of when it signed this: a device that has
    lost its record sees by it that this is no recording."""

    has_sources: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the controller answers a `SourceRequest`; unset by one that has only messages."""

    expires_at_s: float | msgspec.UnsetType = msgspec.UNSET
    """When it expires, seconds since 1970: a device follows it no more then, and goes on with what
    it has. Unset by controllers without trusted metadata."""

    timestamp: int | msgspec.UnsetType = msgspec.UNSET
    """The version of the timestamp that the controller had signed when it signed this. A device
    that trusts an older one waits for that."""

    @property
    def is_unnamed(self) -> bool:
        """Whether it came in form 1 without a release: nothing is ordered of what there is."""
        return self.schema_version == ONE_RELEASE and not self.models

    def model(self, name: str) -> ModelState | None:
        """Return what is said about a model; None if it is not named."""
        return next((model for model in self.models if model.name == name), None)

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with the models, each as one line; empty if they can be."""
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        lines = [f"model {name} is named twice" for name in twice]
        if len(names) > MAX_MODELS:
            lines.append(f"{len(names)} models are named, and a device has {MAX_MODELS} at most")
        for model in self.models:
            if NAME_PATTERN.fullmatch(model.name) is None:
                lines.append(f"{model.name[:64]!r} is no name of a model")
            if not 1 <= model.revision <= min(self.revision, MAX_REVISION):
                lines.append(
                    f"the revision {model.revision} of model {model.name[:64]} is not within 1 to "
                    f"{self.revision}"
                )
            if model.release is not None and model.release.name != model.name:
                lines.append(
                    f"model {model.name[:64]} has a package of another model: "
                    f"{model.release.name[:64]}:{model.release.version[:64]}"
                )
            if not isinstance(model.capture, msgspec.UnsetType):
                lines += [f"model {model.name[:64]}: {each}" for each in model.capture.faults()]
            lines += [f"model {model.name[:64]}: {each}" for each in window_faults(model.hours)]
            if not isinstance(model.shadow, msgspec.UnsetType):
                faults = model.shadow.faults(model.name)
                lines += [f"model {model.name[:64]}: {each}" for each in faults]
        return tuple(lines)


class _Form(msgspec.Struct):
    schema_version: int = ONE_RELEASE


def desired_from_json(payload: bytes) -> DesiredModels:
    """Read a desired state of either form.

    Args:
        payload: The bytes, whose signature has been checked.

    Returns:
        The desired state. One of form 1 gives one model, or with no release leaves all as they are.

    Raises:
        WireFormatError: Too large, malformed, or of another form.
    """
    form = from_json(payload, _Form, limit_bytes=MAX_MESSAGE_BYTES).schema_version
    if form in {NAMED_MODELS, WINDOWS}:
        return from_json(payload, DesiredModels, limit_bytes=MAX_MESSAGE_BYTES)
    if form != ONE_RELEASE:
        raise WireFormatError(
            f"the desired state has the form {form}; this version reads {ONE_RELEASE} to {WINDOWS}"
        )
    return _named(decode_message(payload, DesiredState))


def desired_to_json(desired: DesiredModels, *, form: int) -> bytes:
    """Write a desired state.

    Args:
        desired: What the device should run.
        form: The newest form that the device reads.

    Returns:
        The bytes.

    Raises:
        WireFormatError: It has several models, and the device reads only form 1.
    """
    if form >= WINDOWS and any(model.hours for model in desired.models):
        return to_json(msgspec.structs.replace(desired, schema_version=WINDOWS))
    if form >= NAMED_MODELS:
        models = [msgspec.structs.replace(each, windows=msgspec.UNSET) for each in desired.models]
        return to_json(
            msgspec.structs.replace(desired, schema_version=NAMED_MODELS, models=tuple(models))
        )
    if len(desired.models) > 1:
        names = ", ".join(model.name for model in desired.models)
        raise WireFormatError(
            f"the agent of device {desired.device} has one model, and it should run {names}"
        )
    model = desired.models[0] if desired.models else None
    return to_json(
        DesiredState(
            device=desired.device,
            revision=desired.revision,
            issued_at_s=desired.issued_at_s,
            release=model.release if model else None,
            rollout=model.rollout if model else None,
            policy=model.policy if model else PolicySpec(),
            boot_id=desired.boot_id,
            has_sources=desired.has_sources,
        )
    )


def _named(one: DesiredState) -> DesiredModels:
    """Return what form 1 says, with the name of its model; its version tells whence it came."""
    release = one.release
    models = () if release is None else (
        ModelState(
            name=release.name,
            revision=one.revision,
            release=release,
            rollout=one.rollout,
            policy=one.policy,
        ),
    )  # fmt: skip
    return DesiredModels(
        schema_version=ONE_RELEASE,
        device=one.device,
        revision=one.revision,
        issued_at_s=one.issued_at_s,
        models=models,
        keeps_others=release is None,
        boot_id=one.boot_id,
        has_sources=one.has_sources,
    )
