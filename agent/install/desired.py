"""Checks a desired state before anything acts on it. Pure: bytes in, a checked value out.

Rules:
- The signature by the `director` role is checked first; nothing is read before it.
- It must be for this device, and its revision must not be lower than an accepted one: nobody can
  bring back an old release with a recorded old desired state.
- Revisions grow in bounded steps, so no single desired state uses them up. Where the device cannot
  trust what it knows, a desired state counts that names the present start of the agent.
"""

from __future__ import annotations

import msgspec

from agent.errors import OlderRevisionError, RefusedError
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    MAX_REVISION,
    MAX_REVISION_STEP,
    DesiredModels,
    ModelState,
    desired_from_json,
)
from wire.installs import ReleaseRef
from wire.package.index import is_digest
from wire.profile import NAME_PATTERN
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust


def read_desired(envelope: bytes, trust: Trust, device: str) -> DesiredModels:
    """Verify and read a desired state.

    Args:
        envelope: The signed form, received or stored.
        trust: The keys that may sign it.
        device: This device.

    Returns:
        The desired state.

    Raises:
        SignatureError: The director has not signed it.
        WireFormatError: It is malformed.
        RefusedError: It is for another device, has impossible values, or its models cannot be.
    """
    payload = trust.unseal(envelope, role="director", payload_type=DESIRED_PAYLOAD_TYPE)
    desired = desired_from_json(payload)
    if desired.device != device:
        raise RefusedError(f"device {device} received a desired state for {desired.device!r}")
    if not 1 <= desired.revision <= MAX_REVISION:
        raise RefusedError(f"revision {desired.revision} is not within 1 to {MAX_REVISION}")
    if faults := desired.faults():
        raise RefusedError(f"the desired state cannot be: {faults[0]}")
    for model in desired.models:
        if model.release is not None:
            check_release(model.release)
        _check_policy(model)
    return desired


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the device knows of the desired states that it has accepted."""

    floor: int
    """The highest revision that was accepted; 0 if none was."""

    lost: bool
    """Whether it has lost the record of what it accepted."""

    boot_id: str
    """The present start of the agent; a recording of an earlier desired state cannot name it."""


def check_revision(desired: DesiredModels, known: Known) -> None:
    """Refuse a desired state that is older than what was accepted, or may be.

    A desired state that names the present start of the agent was signed after it. It may go back
    where the record is lost, or where the floor is too high to be true.

    Args:
        desired: A verified desired state.
        known: What was accepted before.

    Raises:
        OlderRevisionError: It is older.
        RefusedError: It may be older, or is too far ahead.
    """
    step = desired.revision - known.floor
    if desired.boot_id == known.boot_id and (known.lost or abs(step) > MAX_REVISION_STEP):
        return
    if known.lost:
        raise RefusedError(
            f"the record of what was accepted is lost, and revision {desired.revision} may be a "
            "recording: it was not signed for this start of the agent",
            remedy="wait for the controller's answer to the hello; a controller of an earlier "
            "version must be updated",
        )
    if step < 0:
        raise OlderRevisionError(
            f"revision {desired.revision} is older than the accepted {known.floor}"
        )
    if step > MAX_REVISION_STEP and known.floor > 0:
        raise RefusedError(
            f"revision {desired.revision} is more than {MAX_REVISION_STEP} ahead of the accepted "
            f"{known.floor}, and was not signed for this start of the agent"
        )


def check_release(release: ReleaseRef) -> None:
    """Refuse a release with impossible values.

    Raises:
        RefusedError: A name, a size or a digest is none.
    """
    sizes = 0 < release.envelope_size_bytes <= MAX_ENVELOPE_BYTES
    names = all(NAME_PATTERN.fullmatch(name) for name in (release.name, release.version))
    if not (sizes and names and is_digest(release.digest) and is_digest(release.envelope_sha256)):
        raise RefusedError(
            f"the release {release.name!r} {release.version!r} has an invalid name, size or digest"
        )


def _check_policy(model: ModelState) -> None:
    if faults := model.policy.faults():
        raise RefusedError(f"the policy of model {model.name} is not valid: {faults[0]}")
