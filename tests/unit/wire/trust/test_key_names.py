"""The names of keys are digests of the keys."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import SSlibKey

from wire.codec import sha256_hex
from wire.trust.envelope import SigningKey
from wire.trust.key_names import key_names

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(keytype=TEXTS.filter(lambda text: text != "ed25519"), scheme=TEXTS, public=TEXTS)
def test_the_name_is_the_digest_of_the_canonical_form(
    keytype: str, scheme: str, public: str
) -> None:
    key = {"keytype": keytype, "scheme": scheme, "keyval": {"public": public}}
    canonical = encode_canonical(key)
    assert isinstance(canonical, str)
    assert key_names(keytype, scheme, {"public": public}) == (sha256_hex(canonical.encode()),)


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_other_keys_have_the_name_that_tuf_tools_give_them(kind: str) -> None:
    private = (
        ec.generate_private_key(ec.SECP256R1())
        if kind == "ecdsa"
        else rsa.generate_private_key(65537, 2048)
    )
    key = SSlibKey.from_crypto(private.public_key())
    assert key_names(key.keytype, key.scheme, key.keyval) == (key.keyid,)


def test_an_ed25519_key_has_the_name_that_it_has_in_envelopes() -> None:
    seed = bytes(range(32))
    public = SSlibKey.from_crypto(
        ed25519.Ed25519PrivateKey.from_private_bytes(seed).public_key()
    ).keyval["public"]
    key = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}}
    canonical = encode_canonical(key)
    assert isinstance(canonical, str)
    own, common = key_names("ed25519", "ed25519", {"public": public})
    assert (own, common) == (SigningKey(seed).keyid, sha256_hex(canonical.encode()))
    assert key_names("ed25519", "ed25519", {"public": public.upper()})[0] == own


@pytest.mark.parametrize("keyval", [{}, {"public": 7}, {"public": None}, {"private": "x"}], ids=str)
def test_what_is_no_key_has_no_name(keyval: dict[str, object]) -> None:
    assert key_names("ed25519", "ed25519", keyval) == ()
    assert key_names("rsa", "rsassa-pss-sha256", keyval) == ()


def test_what_is_not_hexadecimal_is_no_ed25519_key() -> None:
    assert key_names("ed25519", "ed25519", {"public": "no key"}) == ()
