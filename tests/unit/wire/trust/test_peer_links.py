"""Promises of the links between devices: each is for one fetcher, server, blob and time."""

from __future__ import annotations

import pytest

from wire.errors import SignatureError
from wire.trust.envelope import SigningKey
from wire.trust.peer_links import check_peer_link, peer_path
from wire.trust.root import Role, encode_key

SHA256 = "ab" * 32
NOW_S = 1_700_000_000.0


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()[0]


def role(*keys: SigningKey, threshold: int = 1) -> Role:
    return Role(keys=tuple(encode_key(key.public_key) for key in keys), threshold=threshold)


def link(key: SigningKey, until_s: int = int(NOW_S) + 60) -> str:
    path = peer_path(key, device="cam-2", peer="cam-1", sha256=SHA256, until_s=until_s)
    place, _, query = path.partition("?")
    assert place == f"/blobs/{SHA256}"
    return query


def test_a_link_says_who_fetches_and_until_when(key: SigningKey) -> None:
    found = check_peer_link(role(key), link(key), peer="cam-1", sha256=SHA256, now_s=NOW_S)

    assert found == ("cam-2", int(NOW_S) + 60)


def test_any_key_of_the_director_may_sign(key: SigningKey) -> None:
    other = SigningKey.generate()[0]

    found = check_peer_link(role(other, key), link(key), peer="cam-1", sha256=SHA256, now_s=NOW_S)

    assert found.device == "cam-2"


@pytest.mark.parametrize(
    ("change", "peer", "sha256", "now_s"),
    [
        (("cam-2", "cam-3"), "cam-1", SHA256, NOW_S),
        (("", ""), "cam-3", SHA256, NOW_S),
        (("", ""), "cam-1", "cd" * 32, NOW_S),
        (("", ""), "cam-1", SHA256, NOW_S + 60),
        (("until=17000000", "until=18000000"), "cam-1", SHA256, NOW_S),
        (("until=", "until=0"), "cam-1", SHA256, NOW_S),
        (("peer=cam-1", "peer=cam-3"), "cam-3", SHA256, NOW_S),
        (("&peer=cam-1", ""), "cam-1", SHA256, NOW_S),
        (("signature=", "signature=A"), "cam-1", SHA256, NOW_S),
        (("device=", "device=a\n"), "cam-1", SHA256, NOW_S),
    ],
    ids=[
        "another fetcher", "another server", "another blob", "too late", "a longer life",
        "written otherwise", "moved to another server", "no server", "a longer signature", "a line",
    ],
)  # fmt: skip
def test_a_link_is_for_nothing_else(
    key: SigningKey, change: tuple[str, str], peer: str, sha256: str, now_s: float
) -> None:
    query = link(key).replace(*change, 1) if change[0] else link(key)

    with pytest.raises(SignatureError) as caught:
        check_peer_link(role(key), query, peer=peer, sha256=sha256, now_s=now_s)

    assert caught.value.remedy == "ask the controller for a new link"


def test_no_other_key_signs_and_one_of_several_that_must_is_not_enough(key: SigningKey) -> None:
    other = SigningKey.generate()[0]

    for director in (role(other), role(key, other, threshold=2)):
        with pytest.raises(SignatureError, match="is not for this blob"):
            check_peer_link(director, link(key), peer="cam-1", sha256=SHA256, now_s=NOW_S)


def test_no_link_is_longer_than_a_query_may_be(key: SigningKey) -> None:
    with pytest.raises(SignatureError, match="no link"):
        check_peer_link(role(key), link(key) + "A" * 600, peer="cam-1", sha256=SHA256, now_s=NOW_S)
