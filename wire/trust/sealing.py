"""Encryption to a public key: HPKE in its base mode, one message for each encapsulated key.

The sender needs the receiver's public key alone. It cannot read what it has sealed, once it has
forgotten it. Who sealed a message is not shown.

Rules:
- The suite is one: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305.
- What is bound to a message (`info`) is not encrypted, and the message opens with the same bytes
  alone.
- A private key, and a key that is derived, stands in no message of an error.

Source:
    RFC 9180: sections 4.1, 5.1, 6.1 and 8.1.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_ABYTES,
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_scalarmult_BYTES,
    randombytes,
)
from nacl.exceptions import CryptoError

from wire.errors import SealedError

OVERHEAD_BYTES: Final = crypto_scalarmult_BYTES + crypto_aead_chacha20poly1305_ietf_ABYTES
"""By how much a sealed message is longer than what it holds."""

_VERSION: Final = b"HPKE-v1"
_KEM: Final = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE: Final = b"HPKE" + b"".join(each.to_bytes(2, "big") for each in (0x0020, 0x0001, 0x0003))
_BASE_MODE: Final = b"\x00"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_NOT_OPENED: Final = "it was sealed to another key, or it or what is said of it was changed"


class _Schedule(NamedTuple):
    key: bytes
    nonce: bytes


class OpeningKey:
    """An X25519 private key in memory.

    Args:
        secret: 32 secret bytes.

    Raises:
        SealedError: They are not 32.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise SealedError(f"a private key has {_KEY_BYTES} bytes, but this has {len(secret)}")
        self._secret = secret
        self.public_key = crypto_scalarmult_base(secret)

    @classmethod
    def generate(cls) -> tuple[OpeningKey, bytes]:
        """Make a new key.

        Returns:
            The key and its secret, to be stored.
        """
        secret = randombytes(_KEY_BYTES)
        return cls(secret), secret

    def open(self, sealed: bytes, *, info: bytes) -> bytes:
        """Return what was sealed to this key.

        Args:
            sealed: As `seal_to` returned it.
            info: What is bound to it, byte for byte.

        Raises:
            SealedError: It was sealed to another key, or it or what is bound to it was changed.
        """
        if len(sealed) < OVERHEAD_BYTES:
            raise SealedError("a sealed message is too short to be one")
        sent, hidden = sealed[:crypto_scalarmult_BYTES], sealed[crypto_scalarmult_BYTES:]
        shared = _shared(_product(self._secret, sent), sent, self.public_key)
        schedule = _schedule(shared, info)
        try:
            return crypto_aead_chacha20poly1305_ietf_decrypt(
                hidden, b"", schedule.nonce, schedule.key
            )
        except CryptoError as exc:
            raise SealedError(f"a sealed message cannot be opened: {_NOT_OPENED}") from exc


def seal_to(public_key: bytes, message: bytes, *, info: bytes) -> bytes:
    """Encrypt a message to a public key.

    Args:
        public_key: X25519, 32 bytes.
        message: What only the holder of the private key may read.
        info: The purpose, and what else is bound to the message; it stays in the clear.

    Returns:
        The encapsulated key and the ciphertext.

    Raises:
        SealedError: It is no public key.
    """
    if len(public_key) != _KEY_BYTES:
        raise SealedError(f"a public key has {_KEY_BYTES} bytes, but this has {len(public_key)}")
    own = randombytes(_KEY_BYTES)
    sent = crypto_scalarmult_base(own)
    schedule = _schedule(_shared(_product(own, public_key), sent, public_key), info)
    hidden = crypto_aead_chacha20poly1305_ietf_encrypt(message, b"", schedule.nonce, schedule.key)
    return b"".join((sent, hidden))


def _product(secret: bytes, public: bytes) -> bytes:
    """Return the Diffie-Hellman product.

    Raises:
        SealedError: The point is of low order, so that everybody would know the product.
    """
    try:
        return crypto_scalarmult(secret, public)
    except CryptoError as exc:
        raise SealedError("a public key is no point that can be used") from exc


def _shared(product: bytes, sent: bytes, public_key: bytes) -> bytes:
    prk = _extract(_KEM, b"", b"eae_prk", product)
    return _expand(_KEM, prk, b"shared_secret", sent + public_key, _KEY_BYTES)


def _schedule(shared: bytes, info: bytes) -> _Schedule:
    context = (
        _BASE_MODE
        + _extract(_SUITE, b"", b"psk_id_hash", b"")
        + _extract(_SUITE, b"", b"info_hash", info)
    )
    secret = _extract(_SUITE, shared, b"secret", b"")
    return _Schedule(
        key=_expand(_SUITE, secret, b"key", context, _KEY_BYTES),
        nonce=_expand(_SUITE, secret, b"base_nonce", context, _NONCE_BYTES),
    )


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return _hmac(salt or bytes(_KEY_BYTES), _VERSION + suite + label + material)


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """Return the first block of HKDF-Expand: no more is needed of any key here."""
    labelled = length.to_bytes(2, "big") + _VERSION + suite + label + info
    return _hmac(prk, labelled + b"\x01")[:length]


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)
