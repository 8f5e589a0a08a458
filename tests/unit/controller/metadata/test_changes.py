"""Changes of trusted metadata: what is taken, what is refused, and what must be signed again."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tuf.api.metadata import MetaFile

from controller.metadata.checks import check, check_ends
from controller.metadata.documents import with_former
from controller.metadata.drafts import difference, read_draft, write_draft
from controller.metadata.edit import (
    RoleKeys,
    moved,
    next_version,
    put,
    renewed,
    undelegated,
    with_keys,
    with_release,
)
from controller.metadata.errors import MetadataError
from controller.metadata.online import online_of, signer_of
from controller.metadata.sets import changed
from controller.metadata.signing import changed_files, lacking, signed, with_stale
from controller.metadata.store import MetadataStore, authored_of
from packager.package.signers import generate_pem
from tests.simulators.repository import DAY_S, Repository, altered, file_of
from wire.metadata import MAX_FILE_BYTES, MetadataFile, parse_file_name, split
from wire.trust.roles import DIRECTOR, RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP

DIGEST = secrets.token_hex(32)


@pytest.fixture
def fleet() -> Repository:
    return Repository()


def test_a_release_is_listed_once_and_a_version_is_one_package(fleet: Repository) -> None:
    fleet.list("digits", "1.0.0", DIGEST)
    again = with_release(
        fleet.authored, "digits", "1.0.0", sha256=DIGEST, size_bytes=100, now_s=fleet.now_s
    )
    assert again is None
    with pytest.raises(MetadataError, match="listed already as another package"):
        fleet.list("digits", "1.0.0", secrets.token_hex(32))


def test_a_list_has_a_bound_that_its_message_holds(fleet: Repository) -> None:
    listed = altered(fleet.authored.lists[RELEASES])
    one = with_release(fleet.authored, "m", "0", sha256=DIGEST, size_bytes=1, now_s=fleet.now_s)
    assert one is not None
    target = one[1].signed.targets["m/0"]
    listed.signed.targets = {f"m/{number}": target for number in range(2600)}
    full = put(fleet.authored, RELEASES, listed)
    with pytest.raises(MetadataError, match="is full") as caught:
        with_release(full, "m", "x", sha256=DIGEST, size_bytes=1, now_s=fleet.now_s)
    assert "fleet key delegate" in caught.value.remedy


def test_what_others_signed_is_refused(fleet: Repository) -> None:
    listed = altered(fleet.authored.lists[RELEASES])
    listed.signed.version += 1
    for role in (TARGETS, DIRECTOR, ROOT):
        fleet.sign(listed, role)
        with pytest.raises(MetadataError, match="0 of 1 needed signatures"):
            check(changed(fleet.authored, [file_of(RELEASES, listed)]))
    fleet.sign(listed, RELEASES)
    check(changed(fleet.authored, [file_of(RELEASES, listed)]))


def test_a_root_needs_the_keys_of_the_root_before_it_and_its_own(fleet: Repository) -> None:
    new = secrets.token_bytes(32)
    document = with_keys(
        fleet.authored,
        ROOT,
        fleet.now_s,
        add=[signer_of(new).public_key],
        remove=[signer_of(fleet.seeds[ROOT][0]).public_key.keyid],
    )
    old, kept, third = fleet.seeds[ROOT]
    enough = {(old, kept, third), (kept, third), (kept, third, new)}
    for seeds in [*enough, (old, kept), (old, new), (new, kept), (kept,)]:
        fleet.sign(document, seeds=seeds)
        files = [file_of(ROOT, document)]
        if seeds in enough:
            assert changed(fleet.authored, files).root.signed.version == 2
        else:
            with pytest.raises(MetadataError, match="of 2 needed signatures"):
                changed(fleet.authored, files)


def test_versions_follow_each_other(fleet: Repository) -> None:
    root = altered(fleet.authored.root, version=3)
    fleet.sign(root, ROOT)
    with pytest.raises(MetadataError, match="does not follow version 1"):
        changed(fleet.authored, [file_of(ROOT, root)])
    listed = altered(fleet.authored.lists[RELEASES], version=1)
    fleet.sign(listed, RELEASES)
    before = fleet.authored
    fleet.list("digits", "1.0.0", DIGEST)
    with pytest.raises(MetadataError, match="does not follow"):
        changed(fleet.authored, [file_of(RELEASES, listed)])
    # What holds already changes nothing, in any order.
    assert changed(fleet.authored, reversed(fleet.authored.files())) == fleet.authored
    assert changed(before, fleet.authored.files()).files() == fleet.authored.files()


def test_a_clock_that_was_ahead_or_a_backup_that_was_restored_is_exceeded() -> None:
    assert next_version(5, 1_700_000_000.9) == 1_700_000_000
    assert next_version(1_800_000_000, 1_700_000_000.0) == 1_800_000_001
    assert next_version(5, 1_700_000_000.0, is_root=True) == 6


def test_another_fleet_is_refused(fleet: Repository) -> None:
    other = Repository()
    root = altered(other.authored.root, version=2)
    fleet.sign(root, ROOT)
    with pytest.raises(MetadataError):
        changed(fleet.authored, [file_of(ROOT, root)])


def test_keys_that_would_leave_a_role_without_enough_are_refused(fleet: Repository) -> None:
    keyid = next(iter(fleet.authored.keys(DIRECTOR)))
    with pytest.raises(MetadataError, match="would have no key"):
        with_keys(fleet.authored, DIRECTOR, fleet.now_s, remove=[keyid])
    with pytest.raises(MetadataError, match="does not sign"):
        with_keys(fleet.authored, TIMESTAMP, fleet.now_s, remove=[keyid])
    with pytest.raises(MetadataError, match="there is no role 'nobody'") as caught:
        with_keys(fleet.authored, "nobody", fleet.now_s)
    assert "director" in caught.value.remedy
    with pytest.raises(MetadataError, match="nobody signs a file of 'director'"):
        renewed(fleet.authored, DIRECTOR, fleet.now_s)


def test_a_key_that_is_taken_back_leaves_a_list_that_must_be_signed_again(
    fleet: Repository,
) -> None:
    fleet.list("digits", "1.0.0", DIGEST)
    new = secrets.token_bytes(32)
    old = list(fleet.authored.keys(RELEASES))
    document = with_keys(
        fleet.authored, RELEASES, fleet.now_s, add=[signer_of(new).public_key], remove=old
    )
    after = with_stale(put(fleet.authored, TARGETS, document), fleet.now_s)
    some = signed(after, [signer_of(fleet.seeds[TARGETS][0])])
    assert list(lacking(some)) == [RELEASES]
    whole = signed(some, [signer_of(new)])
    assert lacking(whole) == {}
    taken = changed(fleet.authored, changed_files(fleet.authored, whole))
    check(taken)
    assert "digits/1.0.0" in taken.lists[RELEASES].signed.targets


def test_a_model_with_a_role_of_its_own_is_listed_by_its_keys_alone(fleet: Repository) -> None:
    fleet.list("digits", "1.0.0", DIGEST)
    fleet.list("speech", "1.0.0", DIGEST)
    team = secrets.token_bytes(32)
    after = moved(fleet.authored, "digits", RoleKeys((signer_of(team).public_key,)), fleet.now_s)
    everybody = [signer_of(seed) for seeds in fleet.seeds.values() for seed in seeds]
    after = signed(after, [*everybody, signer_of(team)])
    assert lacking(after) == {}
    taken = changed(fleet.authored, changed_files(fleet.authored, after))
    check(taken)
    assert taken.role_of("digits/2.0.0") == "digits"
    assert taken.role_of("speech/2.0.0") == RELEASES
    assert set(taken.lists["digits"].signed.targets) == {"digits/1.0.0"}
    assert set(taken.lists[RELEASES].signed.targets) == {"speech/1.0.0"}
    # Whoever lists all other models cannot list this one any more.
    listed = altered(taken.lists[RELEASES])
    listed.signed.version += 1
    listed.signed.targets["digits/2.0.0"] = listed.signed.targets["speech/1.0.0"]
    fleet.sign(listed, RELEASES)
    with pytest.raises(MetadataError, match="is for another role to list"):
        check(changed(taken, [file_of(RELEASES, listed)]))
    with pytest.raises(MetadataError, match="cannot get a role"):
        moved(taken, "digits", RoleKeys((signer_of(team).public_key,)), fleet.now_s)
    with pytest.raises(MetadataError, match="cannot get a role"):
        moved(taken, "root", RoleKeys((signer_of(team).public_key,)), fleet.now_s)


def test_a_director_that_devices_cannot_check_is_refused(fleet: Repository, tmp_path: Path) -> None:
    key = generate_pem(tmp_path / "k.pem", "ecdsa", "")
    targets = with_keys(fleet.authored, DIRECTOR, fleet.now_s, add=[key])
    fleet.sign(targets, TARGETS)
    with pytest.raises(MetadataError, match="not Ed25519"):
        check(changed(fleet.authored, [file_of(TARGETS, targets)]))


def test_signers_may_work_one_after_the_other(fleet: Repository) -> None:
    document = with_keys(
        fleet.authored,
        ROOT,
        fleet.now_s,
        add=[signer_of(secrets.token_bytes(32)).public_key],
    )
    after = put(fleet.authored, ROOT, document)
    for number, seed in enumerate(fleet.seeds[ROOT][:2]):
        before, after = read_draft(write_draft(fleet.authored, after))
        assert before.files() == fleet.authored.files()
        (found,) = lacking(after).values()
        assert (found.valid, found.needed) == (number, 2)
        after = signed(after, [signer_of(seed)])
    assert lacking(after) == {}
    assert authored_of(after.files()).root.signed.version == 2
    lines = difference(fleet.authored, after)
    assert lines[0].startswith("root: version 1 -> 2")
    assert len([line for line in lines if line.startswith("root: adds key")]) == 1


def test_a_draft_shows_every_change_to_who_signs(fleet: Repository) -> None:
    fleet.list("digits", "1.0.0", DIGEST)
    team = signer_of(secrets.token_bytes(32)).public_key
    after = moved(fleet.authored, "digits", RoleKeys((team,)), fleet.now_s)
    lines = difference(*read_draft(write_draft(fleet.authored, after)))
    told = [line.partition(",")[0] for line in lines]
    assert f"digits: adds key {team.keyid[:16]} (ed25519)" in told
    assert "digits: 1 of 1 keys must sign" in told
    assert "digits: lists digits/1.0.0" in told
    assert "releases: lists digits/1.0.0 no more" in told
    with pytest.raises(MetadataError, match="this is no draft"):
        read_draft(fleet.authored.roots[0])


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "nothing", '{"signed": {"_type": "root"}}', "[" * 9999]
)
def test_nonsense_is_one_line(fleet: Repository, content: str) -> None:
    for name in (f"2.{ROOT}", f"9.{TARGETS}", f"9.{RELEASES}", "9.stray"):
        with pytest.raises(MetadataError) as caught:
            changed(fleet.authored, [MetadataFile(name=name, content=content)])
        assert "\n" not in caught.value.message


def test_what_is_kept_comes_back(
    fleet: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("home") / "metadata"
    store = MetadataStore(folder)
    assert not store.exists
    fleet.rotate(ROOT)
    fleet.list("digits", "1.0.0", DIGEST)
    store.keep_authored(fleet.authored)
    store.keep_online(fleet.online)
    assert store.authored().files() == fleet.authored.files()
    online = store.online()
    assert online is not None
    assert online.content == fleet.online.content
    (folder / "online.json").write_text("{}")
    assert MetadataStore(folder).online() is None
    (folder / "authored.json").write_bytes(
        (folder / "authored.json").read_bytes().replace(b"digits", b"digitz")
    )
    with pytest.raises(MetadataError):
        store.authored()


def test_files_are_put_into_messages_that_hold_them() -> None:
    files = tuple(MetadataFile(name=f"{n}.root", content="x" * 50_000) for n in range(1, 9))
    messages = split(files)
    assert tuple(file for message in messages for file in message.files) == files
    assert len(messages) == 2
    assert len(split((MetadataFile(name="1.a", content="x" * MAX_FILE_BYTES),))) == 1
    assert split(()) == []
    assert parse_file_name("12.releases") == ("releases", 12)


def test_a_clock_that_was_ahead_locks_nobody_out(fleet: Repository) -> None:
    held, right_s = fleet.authored, fleet.now_s
    fleet.now_s += 300 * DAY_S
    fleet.list("digits", "1.0.0", DIGEST)
    ahead = fleet.authored
    with pytest.raises(MetadataError, match="lies in the future"):
        check_ends(held, ahead, right_s)
    # Where it was taken, all goes on when the clock is right again.
    fleet.now_s = right_s
    fleet.list("digits", "2.0.0", DIGEST)
    check_ends(ahead, fleet.authored, right_s)


def test_a_role_that_a_thief_made_goes_with_all_that_it_lists(fleet: Repository) -> None:
    fleet.delegate("digits")
    fleet.list("digits", "1.0.0", DIGEST)
    fleet.list("speech", "1.0.0", DIGEST)
    before = fleet.authored
    after = signed(
        undelegated(before, "digits", fleet.now_s),
        [signer_of(seed) for seed in fleet.seeds[TARGETS]],
    )
    assert lacking(after) == {}
    lines = difference(before, after)
    assert "digits: is no role any more" in lines
    assert "digits: lists digits/1.0.0 no more" in lines
    taken = changed(before, changed_files(before, after))
    check(taken)
    assert taken.role_of("digits/1.0.0") == RELEASES
    assert "digits" not in taken.lists
    assert taken.keys("digits") == {}
    for name in ("digits", RELEASES, DIRECTOR):
        with pytest.raises(MetadataError, match="has no role of its own"):
            undelegated(taken, name, fleet.now_s)


def test_a_role_is_taken_away_by_a_draft_as_well(fleet: Repository) -> None:
    fleet.delegate("digits")
    fleet.list("digits", "1.0.0", DIGEST)
    draft = write_draft(fleet.authored, undelegated(fleet.authored, "digits", fleet.now_s))
    before, after = read_draft(draft)
    assert list(lacking(after)) == [TARGETS]
    assert "digits: lists digits/1.0.0 no more" in difference(before, after)
    after = signed(after, [signer_of(seed) for seed in fleet.seeds[TARGETS]])
    before, after = read_draft(write_draft(before, after))
    assert lacking(after) == {}
    check(changed(fleet.authored, changed_files(before, after)))


def test_a_role_that_comes_again_has_a_list_that_devices_take(fleet: Repository) -> None:
    """A device believes no list that is older than one of the same name, whoever signed that."""
    ahead_s = 36 * 3600
    fleet.now_s += ahead_s  # a clock was wrong once
    fleet.delegate("digits")
    first = fleet.authored.lists["digits"].signed.version
    fleet.change(TARGETS, undelegated(fleet.authored, "digits", fleet.now_s).targets)
    fleet.now_s -= ahead_s
    fleet.authored = authored_of(fleet.files())
    fleet.delegate("digits")
    again = fleet.authored.lists["digits"].signed.version
    assert again == first + 1
    check_ends(authored_of(fleet.files()), fleet.authored, fleet.now_s)


def test_a_list_that_is_older_than_one_that_was_taken_away_is_refused(fleet: Repository) -> None:
    fleet.delegate("digits")
    old = file_of("digits", fleet.authored.lists["digits"])
    targets = fleet.authored.targets
    fleet.now_s += 60
    fleet.change(TARGETS, undelegated(fleet.authored, "digits", fleet.now_s).targets)
    before = with_former(fleet.authored, fleet.online.snapshot)
    again = altered(targets, version=fleet.authored.targets.signed.version + 1)
    fleet.sign(again, TARGETS)
    with pytest.raises(MetadataError, match="does not follow"):
        changed(before, [file_of(TARGETS, again), old])


def test_names_that_a_thief_put_into_a_snapshot_go_with_his_key(fleet: Repository) -> None:
    forged = altered(fleet.online.snapshot)
    forged.signed.meta["digits.json"] = MetaFile(2**50)
    fleet.sign(forged, SNAPSHOT)
    fleet.online = online_of(forged, fleet.online.timestamp)
    assert with_former(fleet.authored, forged).former["digits"] == 2**50
    fleet.rotate(SNAPSHOT)
    assert "digits.json" not in fleet.online.snapshot.signed.meta
    assert with_former(fleet.authored, forged).former == {}
