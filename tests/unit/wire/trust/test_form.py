"""What trusted metadata may look like: nothing that counts lies where no reader looks."""

from __future__ import annotations

from typing import Any

import pytest

from wire.trust.envelope import SigningKey
from wire.trust.form import fault_of, misnamed
from wire.trust.key_names import key_names
from wire.trust.roles import DIRECTOR, RELEASES, role_paths

OURS, THIEF = SigningKey(bytes(range(32))), SigningKey(bytes(range(1, 33)))


def key(of: SigningKey) -> dict[str, Any]:
    public = of.public_key.hex()
    return {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}}


def role(name: str, **changes: Any) -> dict[str, Any]:
    made = {"name": name, "keyids": [OURS.keyid], "threshold": 1, "terminating": True}
    return made | {"paths": [role_paths(name)]} | changes


def targets(*roles: dict[str, Any], **changes: Any) -> dict[str, Any]:
    named = [role("digits"), *roles, role(DIRECTOR), role(RELEASES)]
    return {
        "targets": {},
        "delegations": {"keys": {OURS.keyid: key(OURS)}, "roles": named},
        **changes,
    }


def listed(*paths: str) -> dict[str, Any]:
    return {"targets": {path: {"length": 1, "hashes": {"sha256": "0" * 64}} for path in paths}}


def test_a_root_targets_and_lists_that_commands_make_have_no_fault() -> None:
    assert fault_of({"keys": {OURS.keyid: key(OURS)}, "roles": {}}) is None
    assert fault_of(targets()) is None
    assert fault_of(listed("digits/1.0.0", "text-line.v2/2026-11-26")) is None


def test_no_key_counts_twice_under_two_names() -> None:
    _, common = key_names(key(OURS))
    assert misnamed({"keys": {common: key(OURS)}}) is None
    assert "two names" in str(misnamed({"keys": {OURS.keyid: key(OURS), common: key(OURS)}}))


def test_no_key_hides_under_the_name_of_another_one() -> None:
    assert "another key" in str(fault_of({"keys": {OURS.keyid: key(THIEF)}, "roles": {}}))
    swapped = targets()
    swapped["delegations"]["keys"][OURS.keyid] = key(THIEF)
    assert "another key" in str(fault_of(swapped))
    assert "another key" in str(misnamed(swapped))


@pytest.mark.parametrize(
    "changes",
    [
        {"paths": ["other/*", "digits/0"]},
        {"paths": ["*/*"]},
        {"paths": []},
        {"paths": None, "path_hash_prefixes": ["00"]},
        {"terminating": False},
    ],
    ids=str,
)
def test_a_role_vouches_for_its_own_paths_alone(changes: dict[str, Any]) -> None:
    assert "not its own" in str(fault_of(targets(role("other", **changes))))


def test_the_role_of_all_releases_does_not_stand_before_that_of_a_model() -> None:
    found = targets()
    found["delegations"]["roles"].reverse()
    assert "comes before" in str(fault_of(found))


def test_the_targets_list_nothing_and_name_their_roles() -> None:
    assert "list releases" in str(fault_of(targets(targets=listed("digits/1.0.0")["targets"])))
    assert "unknown field" in str(fault_of({"delegations": {"keys": {}, "succinct_roles": {}}}))


@pytest.mark.parametrize(
    "path",
    ["digits", "digits/", "/1", "a/b/c", "Digits/1", "z/\x1b[1A\x1b[2K", "z/\u202e1", "../x"],
)
def test_a_release_has_a_name_that_every_terminal_shows(path: str) -> None:
    fault = fault_of(listed("digits/1.0.0", path))
    assert fault is not None
    assert "is no release" in fault
    assert fault.isascii()
    assert fault.isprintable()


@pytest.mark.parametrize("hashes", [{}, {"sha256": "short"}, {"sha256": None}])
def test_a_release_has_a_digest(hashes: dict[str, Any]) -> None:
    found = {"targets": {"digits/1.0.0": {"length": 1, "hashes": hashes}}}
    assert "sha256" in str(fault_of(found)).lower().replace("-", "")


@pytest.mark.parametrize(
    "change",
    [{"version": 1.5}, {"version": 0}, {"version": 10**16}, {"_type": 7}, {"targets": []},
     {"targets": {"a/1": {"length": "1", "hashes": {}}}}, {"delegations": {"keys": 7}},
     {"delegations": {"keys": {}, "roles": [7]}}, {"delegations": {"keys": {}, "\x1b[2K": 1}}],
    ids=str,
)  # fmt: skip
def test_each_field_has_its_type(change: dict[str, Any]) -> None:
    fault = fault_of({"targets": {}} | change)
    assert fault is not None
    assert fault.isprintable()


def test_a_role_has_keys_that_are_there() -> None:
    assert "is not there" in str(fault_of(targets(role("other", keyids=[THIEF.keyid]))))
    lost = {"keys": {}, "roles": {"root": {"keyids": [OURS.keyid], "threshold": 1}}}
    assert "is not there" in str(fault_of(lost))


ROOT: dict[str, Any] = {
    "_type": "root",
    "version": 1,
    "x-edgefleet-fleet": "f",
    "keys": {OURS.keyid: key(OURS)},
    "roles": {"root": {"keyids": [], "threshold": 1}},
}


RELEASE: dict[str, Any] = {"length": 1, "hashes": {"sha256": "0" * 64}}
JUNK_KEY = key(OURS) | {"keyval": {"public": OURS.public_key.hex(), "junk": "j"}}


def test_all_that_people_sign_is_known() -> None:
    assert fault_of(ROOT) is None
    assert fault_of(targets()) is None
    assert fault_of(listed("digits/1.0.0")) is None


@pytest.mark.parametrize(
    "where",
    [
        lambda: ROOT | {"x-junk": "j" * 1000},
        lambda: targets(junk=1),
        lambda: targets(role("other", junk=1)),
        lambda: listed("a/1") | {"custom": {}},
        lambda: {"targets": {"a/1": RELEASE | {"custom": {"junk": 1}}}},
        lambda: {"targets": {"a/1": {"length": 1, "hashes": RELEASE["hashes"] | {"md5": ""}}}},
        lambda: {"delegations": {"keys": {OURS.keyid: key(OURS) | {"junk": 1}}, "roles": []}},
        lambda: {"keys": {OURS.keyid: JUNK_KEY}, "roles": {}},
    ],
)
def test_nobody_signs_a_field_that_he_does_not_know(where: Any) -> None:
    assert "unknown field" in str(fault_of(where()))
