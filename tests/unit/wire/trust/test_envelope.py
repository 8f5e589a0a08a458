"""Signatures: what verifies, and what must not."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import from_json, to_json
from wire.errors import SignatureError, WireFormatError
from wire.trust.envelope import (
    Envelope,
    SigningKey,
    is_valid,
    keyid_of,
    read_unverified,
    seal,
    unseal,
)
from wire.trust.root import Role, TrustRoot, encode_key, trust_from_bytes

KIND = "application/vnd.edgefleet.test"
KEY = SigningKey(bytes(range(32)))
OTHER = SigningKey(bytes(range(1, 33)))


@given(st.binary(max_size=2000))
def test_round_trip(payload: bytes) -> None:
    sealed = seal(payload, payload_type=KIND, keys=[KEY])
    assert unseal(sealed, payload_type=KIND, public_keys=[KEY.public_key]) == payload


def test_sealing_is_deterministic() -> None:
    assert seal(b"x", payload_type=KIND, keys=[KEY]) == seal(b"x", payload_type=KIND, keys=[KEY])


def test_known_answer_of_dsse() -> None:
    # RFC 8032, section 7.1, test 1: the empty message under that seed.
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = SigningKey(seed)
    assert key.public_key.hex().startswith("d75a980182b10ab7d54bfed3c964073a")
    assert key.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a")
    sealed = from_json(seal(b"hello", payload_type="t", keys=[key]), Envelope)
    signature = base64.b64decode(sealed.signatures[0].sig)
    assert is_valid(key.public_key, b"DSSEv1 1 t 5 hello", signature)


def test_another_type_is_refused() -> None:
    sealed = seal(b"x", payload_type="other", keys=[KEY])
    with pytest.raises(SignatureError, match="expected a signed"):
        unseal(sealed, payload_type=KIND, public_keys=[KEY.public_key])


def test_an_unknown_key_is_refused() -> None:
    sealed = seal(b"x", payload_type=KIND, keys=[OTHER])
    with pytest.raises(SignatureError, match="0 of 1"):
        unseal(sealed, payload_type=KIND, public_keys=[KEY.public_key])


@given(st.integers(min_value=0, max_value=10_000), st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_refused(position: int, flip: int) -> None:
    sealed = bytearray(seal(b"a payload of some length", payload_type=KIND, keys=[KEY]))
    sealed[position % len(sealed)] ^= flip
    try:
        payload = unseal(bytes(sealed), payload_type=KIND, public_keys=[KEY.public_key])
    except (SignatureError, WireFormatError):
        return
    # Base64 padding bits and JSON field names of no meaning may change; the payload may not.
    assert payload == b"a payload of some length"


def test_a_threshold_counts_distinct_keys() -> None:
    twice = seal(b"x", payload_type=KIND, keys=[KEY, KEY])
    both = seal(b"x", payload_type=KIND, keys=[KEY, OTHER])
    keys = [KEY.public_key, OTHER.public_key]
    with pytest.raises(SignatureError, match="1 of 2"):
        unseal(twice, payload_type=KIND, public_keys=keys, threshold=2)
    assert unseal(both, payload_type=KIND, public_keys=keys, threshold=2) == b"x"


def test_a_threshold_of_zero_still_needs_one() -> None:
    unsigned = to_json(Envelope(payload="eA==", payload_type=KIND, signatures=()))
    with pytest.raises(SignatureError):
        unseal(unsigned, payload_type=KIND, public_keys=[KEY.public_key], threshold=0)


def test_size_is_bounded() -> None:
    sealed = seal(bytes(1000), payload_type=KIND, keys=[KEY])
    with pytest.raises(WireFormatError, match="over the limit"):
        unseal(sealed, payload_type=KIND, public_keys=[KEY.public_key], limit_bytes=100)


def test_roles_do_not_sign_for_each_other() -> None:
    root = TrustRoot(
        release=Role(keys=(encode_key(KEY.public_key),)),
        director=Role(keys=(encode_key(OTHER.public_key),)),
    )
    assert trust_from_bytes(root.to_bytes()) == root
    sealed = seal(b"x", payload_type=KIND, keys=[KEY])
    assert root.unseal(sealed, role="release", payload_type=KIND) == b"x"
    with pytest.raises(SignatureError):
        root.unseal(sealed, role="director", payload_type=KIND)


@pytest.mark.parametrize(
    "role",
    [
        Role(keys=()),
        Role(keys=("AAAA",)),
        Role(keys=("not base64!",)),
        Role(keys=(encode_key(KEY.public_key),), threshold=2),
        Role(keys=(encode_key(KEY.public_key),) * 2, threshold=2),
        Role(keys=(encode_key(KEY.public_key),), threshold=0),
    ],
    ids=["no key", "short key", "no base64", "threshold", "same key twice", "zero"],
)
def test_an_impossible_trust_root_is_refused(role: Role) -> None:
    good = Role(keys=(encode_key(OTHER.public_key),))
    with pytest.raises(WireFormatError):
        trust_from_bytes(TrustRoot(release=role, director=good).to_bytes())


def test_keys_are_named_by_their_digest() -> None:
    assert KEY.keyid == keyid_of(KEY.public_key)
    assert KEY.keyid != OTHER.keyid


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(SignatureError, match="32 bytes"):
        SigningKey(b"short")


def test_an_envelope_is_read_without_asking_who_signed_it() -> None:
    sealed = seal(b"x", payload_type=KIND, keys=[KEY])
    assert read_unverified(sealed, payload_type=KIND) == (b"x", (KEY.keyid,))


@pytest.mark.parametrize(
    ("payload", "kind", "fault"),
    [("eA", KIND, "invalid base64"), ("e*A=", KIND, "invalid base64"), ("eA==", "other", "other")],
)
def test_what_is_no_envelope_of_that_type_is_refused(payload: str, kind: str, fault: str) -> None:
    data = to_json(Envelope(payload=payload, payload_type=kind, signatures=()))
    with pytest.raises(SignatureError, match=fault):
        read_unverified(data, payload_type=KIND)
