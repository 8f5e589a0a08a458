"""What a device that trusts newer metadata tells of the controller."""

from __future__ import annotations

import msgspec
import pytest

from controller.metadata.behind import ANOTHER, UNKNOWN, behind
from controller.metadata.documents import AHEAD_S
from tests.simulators.repository import Repository
from wire.metadata import MetadataVersions
from wire.trust.roles import RELEASES, ROOT, TARGETS


@pytest.fixture(scope="module")
def fleet() -> Repository:
    return Repository()


def found(fleet: Repository, versions: MetadataVersions, *former: str) -> dict[str, str]:
    return dict(behind(fleet.authored, former, versions, fleet.now_s))


def trusted(fleet: Repository, **newer: int) -> MetadataVersions:
    """Return what a device trusts: some versions more than the fleet has."""
    authored = fleet.authored
    return MetadataVersions(
        root=authored.root.signed.version + newer.get(ROOT, 0),
        targets=authored.targets.signed.version + newer.get(TARGETS, 0),
        roles={RELEASES: authored.lists[RELEASES].signed.version + newer.get(RELEASES, 0)},
    )


def test_a_device_that_trusts_what_the_fleet_has_tells_nothing(fleet: Repository) -> None:
    assert not found(fleet, trusted(fleet))
    assert not found(fleet, MetadataVersions(root=0))


@pytest.mark.parametrize(
    ("role", "remedy"),
    [
        (ROOT, "Restore a newer backup; do not sign another root"),
        (TARGETS, "fleet key sign targets --key KEY"),
        (RELEASES, "fleet key sign releases --key KEY"),
    ],
)
def test_what_is_newer_at_a_device_has_a_remedy(fleet: Repository, role: str, remedy: str) -> None:
    told = found(fleet, trusted(fleet, **{role: 1}))
    assert list(told) == [role]
    assert told[role].endswith(remedy)


def test_a_version_of_the_future_is_a_lie(fleet: Repository) -> None:
    assert not found(fleet, trusted(fleet, **{RELEASES: int(fleet.now_s + 2 * AHEAD_S)}))


def test_a_list_that_a_snapshot_still_names_is_known(fleet: Repository) -> None:
    versions = MetadataVersions(root=1, roles={"detector": 1})
    assert "the list detector" in found(fleet, versions)[UNKNOWN]
    assert not found(fleet, versions, "detector")


def test_made_up_lists_are_told_once_and_never_in_the_words_of_the_device(
    fleet: Repository,
) -> None:
    made_up = {f"list-{number}": 1 for number in range(1000)}
    assert list(found(fleet, MetadataVersions(root=1, roles=made_up))) == [UNKNOWN]
    assert not found(fleet, MetadataVersions(root=1, roles={"x\n" * 1000: 1, "../x": 1}))


def test_a_device_with_another_root_is_no_sign_of_a_restored_controller(fleet: Repository) -> None:
    newer = trusted(fleet, **{ROOT: 3, TARGETS: 1, RELEASES: 1})
    own = msgspec.structs.replace(newer, fleet=fleet.authored.fleet)
    assert set(found(fleet, own)) == {ROOT, TARGETS, RELEASES}
    other = msgspec.structs.replace(newer, fleet="0" * 32)
    told = found(fleet, other)
    assert list(told) == [ANOTHER]
    assert "copy root.json to it" in told[ANOTHER]
