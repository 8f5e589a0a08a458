"""What is sealed to a key: another implementation opens it, and nobody without the key."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from wire.errors import SealedError
from wire.trust.sealing import OVERHEAD_BYTES, OpeningKey, seal_to

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
INFO = b"a purpose, and what is bound"
MESSAGE = b"a message" * 100


@pytest.fixture(scope="module")
def pair() -> tuple[OpeningKey, bytes]:
    return OpeningKey.generate()


def test_another_implementation_opens_what_is_sealed_and_seals_what_is_opened(
    pair: tuple[OpeningKey, bytes],
) -> None:
    key, secret = pair
    sealed = seal_to(key.public_key, MESSAGE, info=INFO)
    assert len(sealed) == len(MESSAGE) + OVERHEAD_BYTES
    assert MESSAGE[:8] not in sealed
    theirs = X25519PrivateKey.from_private_bytes(secret)
    assert SUITE.decrypt(sealed, theirs, info=INFO) == MESSAGE
    public = X25519PublicKey.from_public_bytes(key.public_key)
    assert key.open(SUITE.encrypt(MESSAGE, public, info=INFO), info=INFO) == MESSAGE
    assert seal_to(key.public_key, MESSAGE, info=INFO) != sealed, "each has a key of its own"


@pytest.mark.parametrize("place", [0, 31, 32, -1])
def test_what_was_changed_is_not_opened(pair: tuple[OpeningKey, bytes], place: int) -> None:
    key, _ = pair
    sealed = bytearray(seal_to(key.public_key, MESSAGE, info=INFO))
    sealed[place] ^= 1
    with pytest.raises(SealedError):
        key.open(bytes(sealed), info=INFO)


def test_another_key_and_another_binding_open_nothing(pair: tuple[OpeningKey, bytes]) -> None:
    key, _ = pair
    sealed = seal_to(key.public_key, MESSAGE, info=INFO)
    other, _ = OpeningKey.generate()
    for opening, info in ((other, INFO), (key, INFO[:-1]), (key, b"")):
        with pytest.raises(SealedError, match="cannot be opened"):
            opening.open(sealed, info=info)
    with pytest.raises(SealedError, match="too short"):
        key.open(sealed[:40], info=INFO)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), (1).to_bytes(32, "little")])
def test_what_is_no_key_seals_nothing(public: bytes) -> None:
    """Also points of low order: everybody would know the product."""
    with pytest.raises(SealedError):
        seal_to(public, MESSAGE, info=INFO)
    with pytest.raises(SealedError, match="32 bytes"):
        OpeningKey(b"short")
