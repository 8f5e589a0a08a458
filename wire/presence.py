"""What both sides say of themselves when they connect."""

from __future__ import annotations

import msgspec

from wire.messages import Message
from wire.metadata import MetadataVersions
from wire.profile import DeviceProfile

CONTROLLER_START_PAYLOAD_TYPE = "application/vnd.edgefleet.controller-start+json"


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
