"""A key counts once, however it is written."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from securesystemslib.signer import Key, SSlibKey

from controller.metadata.checks import check_keys
from controller.metadata.drafts import read_draft, write_draft
from controller.metadata.edit import put, with_keys
from controller.metadata.errors import MetadataError
from controller.metadata.public_keys import twice
from controller.metadata.sets import changed
from controller.metadata.store import authored_of
from tests.simulators.repository import Repository, file_of
from wire.trust.key_names import key_names
from wire.trust.roles import ROOT, SNAPSHOT, TARGETS

EC_KEY = ec.generate_private_key(ec.SECP256R1()).public_key()
RSA_KEY = rsa.generate_private_key(65537, 2048).public_key()


def pem_of(key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def key_of(kind: str, scheme: str, public: str) -> Key:
    value: Mapping[str, object] = {"keytype": kind, "scheme": scheme, "keyval": {"public": public}}
    return SSlibKey(key_names(value)[0], kind, scheme, {"public": public})


EC_PEM, RSA_PEM = pem_of(EC_KEY), pem_of(RSA_KEY)
RSA_NUMBERS = rsa.RSAPublicNumbers(3, RSA_KEY.public_numbers().n)
PKCS1 = RSA_KEY.public_bytes(Encoding.PEM, PublicFormat.PKCS1).decode()
P256 = ("ecdsa", "ecdsa-sha2-nistp256")
PSS = ("rsa", "rsassa-pss-sha256")
SAME = {
    "another word for the kind": ((*P256, EC_PEM), (P256[1], P256[1], EC_PEM)),
    "one line more": ((*P256, EC_PEM), (*P256, EC_PEM + "\n")),
    "no last line": ((*P256, EC_PEM), (*P256, EC_PEM.rstrip())),
    "words before it": ((*P256, EC_PEM), (*P256, f"of the supplier\n{EC_PEM}")),
    "another scheme": ((*PSS, RSA_PEM), ("rsa", "rsa-pkcs1v15-sha256", RSA_PEM)),
    "another exponent": ((*PSS, RSA_PEM), (*PSS, pem_of(RSA_NUMBERS.public_key()))),
    "another form": ((*PSS, RSA_PEM), (*PSS, PKCS1)),
}


@pytest.mark.parametrize(("first", "second"), SAME.values(), ids=SAME)
def test_a_key_has_one_name(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    one, other = key_of(*first), key_of(*second)
    assert one.keyid != other.keyid
    assert twice({one.keyid: one}) is None
    assert "has two names" in str(twice({one.keyid: one, other.keyid: other}))
    fleet = Repository()
    root = with_keys(fleet.authored, TARGETS, fleet.now_s, add=[one, other], threshold=2)
    after = put(fleet.authored, ROOT, root)
    with pytest.raises(MetadataError, match="has two names"):
        check_keys(fleet.authored, after)
    with pytest.raises(MetadataError, match="has two names"):
        read_draft(write_draft(fleet.authored, after))


def test_a_fleet_that_has_one_key_twice_can_take_it_away() -> None:
    """An earlier version took such roots, and none can be taken back."""
    one, other = key_of(*P256, EC_PEM), key_of(*P256, EC_PEM + "\n")
    fleet = Repository()
    before = fleet.authored
    for change in ({"add": [one]}, {"add": [other]}, {"remove": [other.keyid]}):
        root = with_keys(fleet.authored, TARGETS, fleet.now_s, **change)
        before = fleet.authored
        fleet.sign(root, ROOT)
        fleet.authored = changed(before, [file_of(ROOT, root)])
        assert authored_of(fleet.authored.files()).root.signed.version == root.signed.version
    check_keys(before, fleet.authored)


def test_a_key_may_sign_for_several_roles() -> None:
    one, other = key_of(*P256, EC_PEM), key_of(*P256, EC_PEM + "\n")
    fleet = Repository()
    for role, key in ((TARGETS, one), (SNAPSHOT, other)):
        root = with_keys(fleet.authored, role, fleet.now_s, add=[key])
        before = fleet.authored
        fleet.sign(root, ROOT)
        fleet.authored = changed(before, [file_of(ROOT, root)])
        check_keys(before, fleet.authored)


def test_different_keys_are_different() -> None:
    keys = [key_of(*P256, EC_PEM), key_of(*PSS, RSA_PEM)]
    keys += [key_of(*P256, pem_of(ec.generate_private_key(ec.SECP256R1()).public_key()))]
    keys += [*Repository().authored.all_keys()]
    assert twice({key.keyid: key for key in keys}) is None


@pytest.mark.parametrize("public", ["", "no key", EC_PEM.replace("M", "N"), EC_PEM[:60]])
def test_what_is_no_key_is_told(public: str) -> None:
    assert "cannot be read" in str(twice({"a": key_of(*P256, public)}))
