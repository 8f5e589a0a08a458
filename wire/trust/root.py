"""The roles that may sign, with their keys and thresholds.

Rules:
- There are two roles: `release` signs packages (the packager), `director` signs desired states (the
  controller). A key of one role has no rights in the other, so the thief of a controller cannot
  make a model, and the thief of a release key cannot send one to devices.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, Protocol

import msgspec

from wire.codec import from_json, to_pretty_json
from wire.errors import WireFormatError
from wire.trust.envelope import unseal

RoleName = Literal["release", "director"]
PUBLIC_KEY_BYTES = 32


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """Public keys in base64, and how many of them must sign."""

    keys: tuple[str, ...]
    threshold: int = 1

    def public_keys(self) -> tuple[bytes, ...]:
        """Return the raw public keys.

        Raises:
            WireFormatError: A key is not 32 bytes of base64.
        """
        return tuple(_public_key(text) for text in self.keys)

    def unseal(self, data: bytes, payload_type: str) -> bytes:
        """Verify an envelope, and return what was signed.

        Args:
            data: The envelope.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope, or a key is none.
            SignatureError: Not enough valid signatures of these keys.
        """
        return unseal(
            data,
            payload_type=payload_type,
            public_keys=self.public_keys(),
            threshold=self.threshold,
        )


class Trust(Protocol):
    """Knows whose signatures count: the keys of a file, or what trusted metadata says now."""

    @property
    def director(self) -> Role:
        """The keys that may sign desired states, now."""
        ...

    @property
    def fleet_names(self) -> tuple[str, ...]:
        """Names of the fleet, from which the account for devices that return follows."""
        ...

    def unseal(self, data: bytes, *, role: RoleName, payload_type: str) -> bytes:
        """Verify an envelope against a role, and return what was signed.

        Args:
            data: The envelope.
            role: The role that must have signed.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope.
            SignatureError: That role did not vouch for it.
        """
        ...


class TrustRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a device trusts, installed with the device's software."""

    schema_version: int = 1
    release: Role
    director: Role

    @property
    def fleet_names(self) -> tuple[str, ...]:
        """Names of the fleet, from which the account for devices that return follows."""
        return self.director.keys

    def unseal(self, data: bytes, *, role: RoleName, payload_type: str) -> bytes:
        """Verify an envelope against a role.

        Args:
            data: The envelope.
            role: The role that must have signed.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope.
            SignatureError: Not enough valid signatures of that role.
        """
        needed = self.release if role == "release" else self.director
        return needed.unseal(data, payload_type)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return to_pretty_json(self)


def trust_from_bytes(data: bytes) -> TrustRoot:
    """Read a trust root.

    Args:
        data: The bytes of the file.

    Returns:
        The trust root.

    Raises:
        WireFormatError: Not a trust root, a bad key, or a threshold that cannot be met.
    """
    root = from_json(data, TrustRoot)
    if root.schema_version != 1:
        raise WireFormatError(f"trust root: unknown schema version {root.schema_version}")
    for role in (root.release, root.director):
        if not 1 <= role.threshold <= len(set(role.public_keys())):
            raise WireFormatError("trust root: a threshold is not within 1 to the number of keys")
    return root


def encode_key(public_key: bytes) -> str:
    """Return a public key in base64."""
    return base64.b64encode(public_key).decode()


def _public_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise WireFormatError(f"trust root: a key is not base64: {exc}") from exc
    if len(key) != PUBLIC_KEY_BYTES:
        raise WireFormatError(f"trust root: a public key has {len(key)} bytes, not 32")
    return key
