"""The names of keys are digests of the keys."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import SSlibKey

from wire.codec import sha256_hex
from wire.trust.envelope import SigningKey
from wire.trust.key_names import key_names

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def digest(key: dict[str, Any]) -> str:
    canonical = encode_canonical(key)
    assert isinstance(canonical, str)
    return sha256_hex(canonical.encode())


@given(
    keytype=TEXTS.filter(lambda text: text != "ed25519"),
    scheme=TEXTS,
    public=TEXTS,
    more=st.dictionaries(
        TEXTS.filter(lambda text: text not in {"keytype", "scheme", "keyval"}), VALUES, max_size=3
    ),
)
def test_the_names_are_digests_of_the_canonical_form(
    keytype: str, scheme: str, public: str, more: dict[str, Any]
) -> None:
    key: dict[str, Any] = {"keytype": keytype, "scheme": scheme, "keyval": {"public": public}}
    assert key_names(key) == (digest(key),)
    assert key_names(more | key) == tuple(dict.fromkeys((digest(key), digest(more | key))))


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_other_keys_have_the_name_that_tuf_tools_give_them(kind: str) -> None:
    private = (
        ec.generate_private_key(ec.SECP256R1())
        if kind == "ecdsa"
        else rsa.generate_private_key(65537, 2048)
    )
    key = SSlibKey.from_crypto(private.public_key())
    assert key_names(key.to_dict()) == (key.keyid,)


def test_an_ed25519_key_has_the_name_that_it_has_in_envelopes_first() -> None:
    own = SigningKey(bytes(range(32)))
    public = own.public_key.hex()
    key: dict[str, Any] = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}}
    assert key_names(key) == (own.keyid, digest(key))
    assert key_names(key | {"keyval": {"public": public.upper()}})[0] == own.keyid


@pytest.mark.parametrize(
    "keyval",
    [{}, {"public": 7}, {"public": None}, {"private": "x"}, {"public": "\ud800"}, None, []],
)
@pytest.mark.parametrize("keytype", ["ed25519", "rsa"])
def test_what_is_no_key_has_no_name(keytype: str, keyval: object) -> None:
    assert key_names({"keytype": keytype, "scheme": "s", "keyval": keyval}) == ()


def test_what_is_not_hexadecimal_is_no_ed25519_key() -> None:
    assert key_names({"keytype": "ed25519", "keyval": {"public": "no key"}}) == ()


def test_what_is_nested_without_end_has_no_name() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert key_names({"keytype": "rsa", "keyval": {"public": "x"}, "deep": deep}) == ()
