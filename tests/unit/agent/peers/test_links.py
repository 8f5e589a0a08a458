"""Links that are remembered: as strict as at the first time."""

from __future__ import annotations

import pytest

from agent.peers.links import MAX_LINKS, CheckedLinks
from tests.simulators.packages import DIRECTOR_KEY, STRANGER_KEY, TRUST
from wire.errors import SignatureError
from wire.trust.envelope import SigningKey
from wire.trust.peer_links import PeerLink, peer_path

BLOB, OTHER = "1" * 64, "2" * 64
UNTIL_S = 1000


def query(device: str = "dev-1", key: SigningKey = DIRECTOR_KEY, until_s: int = UNTIL_S) -> str:
    path = peer_path(key, device=device, peer="cam-1", sha256=BLOB, until_s=until_s)
    return path.partition("?")[2]


def test_a_link_counts_again_for_its_own_blob_and_time_alone() -> None:
    links, link = CheckedLinks(TRUST, "cam-1"), query()
    for _ in range(2):
        assert links.check(link, BLOB, UNTIL_S - 1) == PeerLink("dev-1", UNTIL_S)
        with pytest.raises(SignatureError, match="not for this blob"):
            links.check(link, OTHER, UNTIL_S - 1)
        with pytest.raises(SignatureError, match="has expired"):
            links.check(link, BLOB, UNTIL_S)


def test_a_link_that_is_not_valid_is_never_remembered() -> None:
    links, forged = CheckedLinks(TRUST, "cam-1"), query(key=STRANGER_KEY)
    for _ in range(2):
        with pytest.raises(SignatureError):
            links.check(forged, BLOB, 0)


def test_many_links_are_checked_anew() -> None:
    links = CheckedLinks(TRUST, "cam-1")
    for number in range(2 * MAX_LINKS):
        assert links.check(query(f"dev-{number}"), BLOB, 0).device == f"dev-{number}"
    assert len(links._valid) == MAX_LINKS
