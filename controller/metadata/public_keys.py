"""Tells keys apart by what they are, however they are written. Pure.

One key can be written in many ways: another scheme, another line of its PEM, another form of the
same point on its curve. Each has a name of its own, and would count for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from securesystemslib.signer import Key

from wire.trust.roles import ED25519


def twice(keys: Mapping[str, Key]) -> str | None:
    """Return which key is there under two names or is no key, or None.

    Args:
        keys: By their names.
    """
    known: set[bytes] = set()
    for name, key in keys.items():
        public = str(key.keyval.get("public", ""))
        try:
            identity = bytes.fromhex(public) if key.keytype == ED25519 else _content(public)
        except (ValueError, UnsupportedAlgorithm):
            return f"the key {name[:16]!a} cannot be read"
        if identity in known:
            return f"the key {name[:16]!a} has two names"
        known.add(identity)
    return None


def _content(pem: str) -> bytes:
    """Return what makes a key: the modulus of RSA, else its form in RFC 5280; raises ValueError."""
    key = load_pem_public_key(pem.encode())
    if isinstance(key, RSAPublicKey):  # who knows its factors signs for any exponent
        return b"rsa %d" % key.public_numbers().n
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
