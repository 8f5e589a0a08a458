"""How a device asks to join the fleet, and what it is answered."""

from __future__ import annotations

import msgspec

from wire.certificates import DeviceCertificate
from wire.messages import Message
from wire.metadata import MetadataFile
from wire.profile import DeviceProfile

ENROL_PAYLOAD_TYPE = "application/vnd.edgefleet.enrol-answer+json"


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
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec makes a new one for each message
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
