"""Checks a desired state before anything acts on it. Pure: bytes in, a checked value out.

Rules:
- The signature by the `director` role is checked first; nothing is read before it.
- It must be for this device, and its revision must not be lower than an accepted one: nobody can
  bring back an old release with a recorded old desired state.
"""

from __future__ import annotations

from agent.errors import OlderRevisionError, RefusedError
from wire.messages import DESIRED_PAYLOAD_TYPE, DesiredState, PolicySpec, ReleaseRef, decode_message
from wire.package.index import is_digest
from wire.profile import NAME_PATTERN
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import TrustRoot


def read_desired(envelope: bytes, trust: TrustRoot, device: str) -> DesiredState:
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
        RefusedError: It is for another device, or has impossible values.
    """
    payload = trust.unseal(envelope, role="director", payload_type=DESIRED_PAYLOAD_TYPE)
    desired = decode_message(payload, DesiredState)
    if desired.device != device:
        raise RefusedError(f"device {device} received a desired state for {desired.device!r}")
    if desired.revision < 1:
        raise RefusedError(f"revision {desired.revision} is not positive")
    if desired.release is not None:
        _check_release(desired.release)
    _check_policy(desired.policy)
    return desired


def check_revision(desired: DesiredState, accepted: int) -> None:
    """Refuse a desired state that is older than what was accepted.

    Args:
        desired: A verified desired state.
        accepted: The highest revision that was accepted.

    Raises:
        OlderRevisionError: It is older.
    """
    if desired.revision < accepted:
        raise OlderRevisionError(
            f"revision {desired.revision} is older than the accepted {accepted}"
        )


def _check_release(release: ReleaseRef) -> None:
    sizes = 0 < release.envelope_size_bytes <= MAX_ENVELOPE_BYTES
    names = all(NAME_PATTERN.fullmatch(name) for name in (release.name, release.version))
    if not (sizes and names and is_digest(release.digest) and is_digest(release.envelope_sha256)):
        raise RefusedError(
            f"the release {release.name!r} {release.version!r} has an invalid name, size or digest"
        )


def _check_policy(policy: PolicySpec) -> None:
    if faults := policy.faults():
        raise RefusedError(f"the policy is not valid: {faults[0]}")
