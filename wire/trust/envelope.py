"""Signed bytes: DSSE envelopes with Ed25519. This module knows keys, not files.

Rules:
- The signature covers the raw payload and its type; the payload is parsed only after verification.
- A verifier names the type that it expects; a signature for one type is not valid for another.
- A threshold counts different keys.

Source:
    DSSE v1.0 protocol (secure-systems-lab/dsse), pre-authentication encoding; RFC 8032.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from nacl.bindings import (
    crypto_sign,
    crypto_sign_BYTES,
    crypto_sign_open,
    crypto_sign_PUBLICKEYBYTES,
    crypto_sign_seed_keypair,
    crypto_sign_SEEDBYTES,
    randombytes,
)
from nacl.exceptions import BadSignatureError

from wire.codec import from_json, sha256_hex, to_json
from wire.errors import SignatureError

MAX_ENVELOPE_BYTES = 8 * 1024 * 1024
MAX_SIGNATURES = 16
SEED_BYTES = crypto_sign_SEEDBYTES


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """One signature of an envelope."""

    keyid: str
    sig: str
    """Base64."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A DSSE envelope."""

    payload: str
    """Base64."""

    payload_type: str
    signatures: tuple[Signature, ...]


class Unverified(NamedTuple):
    """The content of an envelope whose signatures are not checked."""

    payload: bytes
    keyids: tuple[str, ...]


class SigningKey:
    """An Ed25519 private key in memory.

    Args:
        seed: 32 secret bytes.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise SignatureError(
                f"a private key has {SEED_BYTES} bytes, but this key has {len(seed)}"
            )
        self.public_key, self._secret = crypto_sign_seed_keypair(seed)
        self.keyid = keyid_of(self.public_key)

    @classmethod
    def generate(cls) -> tuple[SigningKey, bytes]:
        """Make a new key.

        Returns:
            The key and its seed, which is the secret to be stored.
        """
        seed = randombytes(SEED_BYTES)
        return cls(seed), seed

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message."""
        return crypto_sign(message, self._secret)[:crypto_sign_BYTES]


def keyid_of(public_key: bytes) -> str:
    """Return the name of a public key: the SHA-256 of its 32 bytes, in hexadecimal."""
    return sha256_hex(public_key)


def seal(payload: bytes, *, payload_type: str, keys: Iterable[SigningKey]) -> bytes:
    """Sign a payload.

    Args:
        payload: The bytes to be signed.
        payload_type: The media type, which is signed too.
        keys: One or more keys.

    Returns:
        The envelope as canonical JSON.
    """
    message = _pre_authentication_encoding(payload_type, payload)
    return to_json(
        Envelope(
            payload=base64.b64encode(payload).decode(),
            payload_type=payload_type,
            signatures=tuple(
                Signature(keyid=key.keyid, sig=base64.b64encode(key.sign(message)).decode())
                for key in keys
            ),
        )
    )


def unseal(
    data: bytes,
    *,
    payload_type: str,
    public_keys: Iterable[bytes],
    threshold: int = 1,
    limit_bytes: int = MAX_ENVELOPE_BYTES,
) -> bytes:
    """Verify an envelope and return what was signed.

    Args:
        data: The envelope as received.
        payload_type: The only type that is accepted.
        public_keys: Keys that may sign this type.
        threshold: How many different keys must have signed.
        limit_bytes: Refuse a larger envelope.

    Returns:
        The payload.

    Raises:
        WireFormatError: Not an envelope, or too large.
        SignatureError: Another type, or too few valid signatures by those keys.
    """
    envelope, payload = _opened(data, payload_type, limit_bytes)
    if len(envelope.signatures) > MAX_SIGNATURES:
        raise SignatureError(f"more than {MAX_SIGNATURES} signatures")
    message = _pre_authentication_encoding(payload_type, payload)
    known = {keyid_of(key): key for key in public_keys}
    valid = {
        signature.keyid
        for signature in envelope.signatures
        if signature.keyid in known
        and is_valid(known[signature.keyid], message, _decode_base64(signature.sig))
    }
    if len(valid) < max(threshold, 1):
        raise SignatureError(
            f"{len(valid)} of {max(threshold, 1)} needed signatures are valid and by a trusted key",
            remedy="sign with a key that has this role in the trust root",
        )
    return payload


def read_unverified(data: bytes, *, payload_type: str) -> Unverified:
    """Read an envelope without checking its signatures.

    For tools that show, upload or check a package by its digests. Code that acts on a payload uses
    `unseal`.

    Args:
        data: The envelope as received.
        payload_type: The only type that is accepted.

    Returns:
        The payload, and the keys whose signatures the envelope claims to have.

    Raises:
        WireFormatError: Not an envelope, or too large.
        SignatureError: Another type, or invalid base64.
    """
    envelope, payload = _opened(data, payload_type, MAX_ENVELOPE_BYTES)
    return Unverified(payload, tuple(signature.keyid for signature in envelope.signatures))


def is_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether a signature over a message was made by a key."""
    if len(signature) != crypto_sign_BYTES or len(public_key) != crypto_sign_PUBLICKEYBYTES:
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


def _opened(data: bytes, payload_type: str, limit_bytes: int) -> tuple[Envelope, bytes]:
    envelope = from_json(data, Envelope, limit_bytes=limit_bytes)
    if envelope.payload_type != payload_type:
        raise SignatureError(f"expected a signed {payload_type}, got {envelope.payload_type!r}")
    return envelope, _decode_base64(envelope.payload)


def _pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise SignatureError(f"an envelope holds invalid base64: {exc}") from exc
