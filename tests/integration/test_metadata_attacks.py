"""The attacks on software updates that The Update Framework names, each mounted on a device.

Whoever carries metadata may keep, mix, repeat and change it as he likes. A device must believe none
of that, keep what it believed, and say what is wrong. The attacks are those of the specification's
section 1.5.2 and of the web page "Security" of the project.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Root

from agent.sealed import SealedFile
from agent.trust.job import MAX_BYTES
from agent.trust.keeper import CHECK_EVERY_S, MetadataTrust
from agent.trust.kept import MAX_LISTS, Origin
from controller.metadata.behind import behind
from controller.metadata.edit import with_keys
from controller.metadata.online import signer_of
from tests.simulators.agent_process import null_package
from tests.simulators.clock import FakeClock
from tests.simulators.packages import SignedPackage
from tests.simulators.repository import DAY_S, Repository, altered, file_of, in_future
from wire.clock import SystemClock
from wire.codec import sha256_hex
from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.errors import SignatureError
from wire.metadata import MAX_FILE_BYTES, MetadataFile, parse_file_name
from wire.package.index import PAYLOAD_TYPE
from wire.trust.envelope import SigningKey, seal
from wire.trust.roles import DIRECTOR, ISSUED_FIELD, RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP

DIGESTS = {version: secrets.token_hex(32) for version in ("1.0.0", "2.0.0", "3.0.0")}


class Events:
    """Keeps events."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, Mapping[str, object]]] = []

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        self.all.append((kind, reason, data))

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""

    @property
    def codes(self) -> list[object]:
        """The codes of what was refused."""
        return [data.get("code") for kind, _, data in self.all if kind == "trust"]


class Device:
    """What a device believes, in a directory of its own."""

    def __init__(self, path: Path, fleet: Repository) -> None:
        self.path = path
        self.fleet = fleet
        self.events = Events()
        self.clock = FakeClock(SystemClock().now_s())
        self.root = fleet.write_root(path / "root.json")
        self.start()

    def start(self, *, grace_s: float = 0.0) -> None:
        """Start, with what is on the disk."""
        self.trust = MetadataTrust(
            self.root,
            self.fleet.authored.fleet,
            self.path / "trust",
            self.events,
            self.clock,
            grace_s=grace_s,
        )
        self.trust.want("digits")

    def hear(self, files: Iterable[MetadataFile]) -> bool:
        """Receive files, after so much time that their check is not put off."""
        self.clock.advance(CHECK_EVERY_S)
        return self.trust.receive(files)

    def may_take(self, version: str) -> bool:
        """Tell whether a release may be installed."""
        return self.trust.later("digits", version, DIGESTS[version]) is None


@pytest.fixture
def fleet() -> Repository:
    """Return a fleet with one listed release."""
    made = Repository()
    made.list("digits", "1.0.0", DIGESTS["1.0.0"])
    return made


@pytest.fixture
def device(tmp_path: Path, fleet: Repository) -> Device:
    """Return a device that believes what the fleet says."""
    made = Device(tmp_path, fleet)
    assert made.hear(fleet.files())
    assert made.may_take("1.0.0")
    return made


def only(files: Iterable[MetadataFile], *roles: str) -> tuple[MetadataFile, ...]:
    return tuple(file for file in files if file.name.rpartition(".")[2] in roles)


def test_arbitrary_installation(device: Device, fleet: Repository) -> None:
    foreign = Repository(fleet=fleet.authored.fleet)
    foreign.list("digits", "2.0.0", DIGESTS["2.0.0"])
    assert not device.hear(foreign.files())
    assert not device.may_take("2.0.0")

    # Of the fleet's own files, one is signed by somebody else.
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    forged = altered(fleet.authored.lists[RELEASES])
    foreign.sign(forged, RELEASES)
    files = [f for f in fleet.files() if not f.name.endswith(RELEASES)]
    device.hear([*files, file_of(RELEASES, forged)])
    assert not device.may_take("2.0.0")
    assert device.events.codes[-1] == "trust.list"


def test_arbitrary_installation_by_one_role_for_another(device: Device, fleet: Repository) -> None:
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    for thief in (DIRECTOR, SNAPSHOT, TIMESTAMP, TARGETS):
        forged = altered(fleet.authored.lists[RELEASES])
        fleet.sign(forged, thief)
        files = [f for f in fleet.files() if not f.name.endswith(RELEASES)]
        device.hear([*files, file_of(RELEASES, forged)])
        assert not device.may_take("2.0.0"), thief
    with pytest.raises(SignatureError):
        device.trust.unseal(
            seal(
                b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[SigningKey(secrets.token_bytes(32))]
            ),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )


JUNK = {
    "half a character in a key": {"keyval": {"public": "\ud800"}},
    "a key without a value": {"keyval": 5},
    "a key of no kind": {"keytype": None, "keyval": {"public": "00"}},
}


@pytest.mark.parametrize("change", JUNK.values(), ids=JUNK)
def test_arbitrary_installation_of_a_root_that_cannot_be_read(
    device: Device, fleet: Repository, change: Mapping[str, object]
) -> None:
    """What nobody signed keeps nothing away that comes after it, also after a restart."""
    junk = json.loads(fleet.authored.roots[0])
    junk["signed"]["version"] = 2
    junk["signed"]["keys"]["a" * 64] = {"keytype": "ed25519", "scheme": "ed25519", **change}
    assert not device.hear([MetadataFile(name="2.root", content=json.dumps(junk))])
    _goes_on(device, fleet)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (TIMESTAMP, {"keys": [1]}), (TIMESTAMP, {"delegations": "x"}),
        (SNAPSHOT, {"keys": {"a": 5}}),
        (TARGETS, {"delegations": {"keys": 7}}), (ROOT, {"keys": [1]}), (7, {"keys": [1]}),
    ],
    ids=str,
)  # fmt: skip
def test_arbitrary_installation_of_another_file_as_a_root(
    device: Device, fleet: Repository, kind: object, field: dict[str, object]
) -> None:
    junk = json.loads(fleet.authored.roots[0])["signed"]
    junk |= {"_type": kind, "version": 2, "meta": {}, "targets": {}} | field
    junk["meta"] = {"snapshot.json": {"version": 1}}
    text = json.dumps({"signed": junk, "signatures": []})
    assert not device.hear([MetadataFile(name="2.root", content=text)])
    _goes_on(device, fleet)


@pytest.mark.parametrize(
    "change", [{"consistent_snapshot": False}, {"x-edgefleet-fleet": "f" * 32}], ids=str
)
def test_a_root_that_would_lock_the_device_is_refused_whoever_signed_it(
    device: Device, fleet: Repository, change: dict[str, object]
) -> None:
    document = with_keys(fleet.authored, ROOT, fleet.now_s, add=[signer_of(b"n" * 32).public_key])
    signed = document.to_dict()["signed"] | change
    wrong: Metadata[Root] = Metadata(Root.from_dict(signed))
    fleet.sign(wrong, ROOT, seeds=[b"n" * 32])
    assert not device.hear([file_of(ROOT, wrong)])
    assert device.trust.versions.root == 1
    fleet.rotate(ROOT)
    _goes_on(device, fleet)
    assert device.trust.versions.root == 2


def _goes_on(device: Device, fleet: Repository) -> None:
    """What was refused is told and gone, and the next honest set is believed."""
    assert str(device.events.codes[-1]).startswith("trust.")
    assert "storage" not in device.trust.refused
    assert not (device.path / "trust" / "incoming").exists()
    assert device.may_take("1.0.0")
    fleet.now_s += 60
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    assert device.hear(fleet.files())
    assert device.may_take("2.0.0")


def test_endless_data(device: Device, fleet: Repository) -> None:
    for role in (TIMESTAMP, f"2.{ROOT}", f"9.{SNAPSHOT}", f"9.{RELEASES}"):
        endless = MetadataFile(name=role, content="x" * (MAX_FILE_BYTES + 1))
        assert not device.hear([endless])
    # A timestamp has a bound of its own.
    assert not device.hear([MetadataFile(name=TIMESTAMP, content="x" * 100_000)])
    # Nobody fills the disk with lists that no device needs.
    for number in range(MAX_LISTS + 10):
        device.hear([MetadataFile(name=f"1.list-{number}", content="{}")])
    kept = sum(file.stat().st_size for file in (device.path / "trust").rglob("*") if file.is_file())
    assert kept < 1024 * 1024
    assert device.hear(_newer(fleet))
    assert device.may_take("2.0.0")


def test_extraneous_dependencies(device: Device, fleet: Repository) -> None:
    # A list may name only what is delegated to it, however its keys sign it.
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    targets = altered(fleet.authored.targets)
    targets.signed.delegations.roles[RELEASES].paths = ["other/*"]
    targets.signed.version += 1
    fleet.sign(targets, TARGETS)
    snapshot = altered(fleet.online.snapshot, version=fleet.online.snapshot.signed.version + 1)
    snapshot.signed.meta["targets.json"].version = targets.signed.version
    fleet.sign(snapshot, SNAPSHOT)
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.snapshot_meta.version = snapshot.signed.version
    fleet.sign(timestamp, TIMESTAMP)
    device.hear(
        [
            *only(fleet.files(), RELEASES),
            file_of(TARGETS, targets),
            file_of(SNAPSHOT, snapshot),
            file_of(TIMESTAMP, timestamp),
        ]
    )
    assert not device.may_take("2.0.0")


def test_fast_forward(device: Device, fleet: Repository) -> None:
    # The thief of the timestamp's and the snapshot's key signs versions that nobody can exceed.
    snapshot = altered(fleet.online.snapshot, version=2**31 - 2)
    fleet.sign(snapshot, SNAPSHOT)
    timestamp = altered(fleet.online.timestamp, version=2**31 - 2)
    timestamp.signed.snapshot_meta.version = snapshot.signed.version
    fleet.sign(timestamp, TIMESTAMP)
    assert device.hear([file_of(SNAPSHOT, snapshot), file_of(TIMESTAMP, timestamp)])
    assert not device.hear(_newer(fleet))

    # Other keys in the root forget them.
    fleet.rotate(TIMESTAMP)
    fleet.rotate(SNAPSHOT)
    fleet.renew(fresh=True)
    assert device.hear(fleet.files())
    assert device.may_take("2.0.0")
    device.start()
    assert device.may_take("2.0.0")


def test_indefinite_freeze(device: Device, fleet: Repository) -> None:
    device.clock.advance(DAY_S + 60)
    assert not device.may_take("1.0.0")
    assert "expired" in (device.trust.stale or "")
    # What is repeated stays what it was.
    device.hear(fleet.files())
    assert not device.may_take("1.0.0")

    # Newer metadata ends it.
    fleet.now_s = device.clock.now_s()
    fleet.renew()
    assert device.hear(fleet.files())
    assert device.may_take("1.0.0")


def test_indefinite_freeze_with_a_clock_that_is_set_back(device: Device, fleet: Repository) -> None:
    device.clock.correct(-3 * 365 * DAY_S)
    fleet.now_s += 5 * DAY_S
    fleet.renew()
    assert device.hear(fleet.files())
    assert device.may_take("1.0.0")
    # Five days have gone, as the device now knows: what had ended by then is not believed, although
    # its own clock says that it is young, and whatever version it has.
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.expires = in_future(3)
    timestamp.signed.unrecognized_fields[ISSUED_FIELD] -= 3 * int(DAY_S)
    fleet.sign(timestamp, TIMESTAMP)
    assert not device.hear([file_of(TIMESTAMP, timestamp)])
    assert device.events.codes[-1] == "trust.expired"


def test_indefinite_freeze_of_what_the_director_ordered(device: Device, fleet: Repository) -> None:
    """A thief of the broker keeps an order, and lets it out when it is long out of date."""
    now_s = device.clock.now_s()
    assert device.trust.not_timely(now_s + DAY_S, None) is None
    assert device.trust.not_timely(now_s, None) == "the desired state expired a moment ago"
    # One that was accepted in time, and is still being fetched when it expires.
    device.trust.follow(b"", expires_at_s=now_s + DAY_S / 2, timestamp=None)
    assert device.may_take("1.0.0")
    assert not device.trust.versions.lacks_desired
    device.clock.advance(DAY_S / 2)
    fleet.now_s += DAY_S / 2
    fleet.renew()
    assert device.hear(fleet.files())
    assert device.trust.stale is None
    assert device.trust.later("digits", "1.0.0", DIGESTS["1.0.0"]) == (
        "the desired state expired a moment ago"
    )
    # The next greeting asks for a new one.
    assert device.trust.versions.lacks_desired


def test_malicious_mirror(device: Device, fleet: Repository) -> None:
    # One that gives nothing, nonsense, or the right things late, cannot do more than delay.
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    for content in (
        "",
        "{}",
        "null",
        '{"signed": {}}',
        "[" * 10_000,
        "\ud7ff",
        fleet.files()[-1].content[:-1],
    ):
        assert not device.hear([MetadataFile(name=TIMESTAMP, content=content)])
    for name in (
        "../root",
        "1.../x",
        "timestamp.json",
        "0.root",
        "1.timestamp",
        "",
        "a/b",
        "1.1.x",
    ):
        device.hear([MetadataFile(name=name, content="{}")])
    assert not device.may_take("2.0.0")
    assert device.may_take("1.0.0")
    assert device.hear(fleet.files())
    assert device.may_take("2.0.0")


def test_mix_and_match(device: Device, fleet: Repository) -> None:
    before = fleet.files()
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    middle = fleet.files()
    fleet.unlist("digits", "1.0.0")
    after = fleet.files()
    mixes: list[tuple[MetadataFile, ...]] = [
        (*only(after, TIMESTAMP, SNAPSHOT), *only(before, TARGETS, RELEASES)),
        (*only(after, TIMESTAMP), *only(middle, SNAPSHOT, RELEASES)),
        (*only(after, TIMESTAMP, SNAPSHOT), *only(middle, RELEASES)),
        (*only(middle, TIMESTAMP, SNAPSHOT), *only(after, RELEASES)),
    ]
    for mix in mixes:
        device.hear(mix)
        assert not device.may_take("2.0.0")
    assert device.hear(after)
    assert device.may_take("2.0.0")
    assert not device.may_take("1.0.0")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "lost", ["nothing", "metadata", "short form", "all but a floor", "one floor"]
)
def test_rollback(device: Device, fleet: Repository, lost: str) -> None:
    old = fleet.files()
    fleet.now_s += 60
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.unlist("digits", "1.0.0")
    assert device.hear(fleet.files())
    _damage(device.path / "trust", lost)
    device.start()
    assert not device.hear(old)
    assert not device.may_take("1.0.0")
    device.hear(fleet.files())
    assert device.may_take("2.0.0")
    assert not device.hear(old)
    assert not device.may_take("1.0.0")


def test_rollback_of_a_list_by_the_thief_of_the_online_keys(
    device: Device, fleet: Repository
) -> None:
    old = only(fleet.files(), RELEASES, TARGETS)
    old_versions = dict(fleet.online.snapshot.signed.meta)
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.unlist("digits", "1.0.0")
    assert device.hear(fleet.files())
    snapshot = altered(fleet.online.snapshot, version=fleet.online.snapshot.signed.version + 1)
    snapshot.signed.meta = old_versions
    fleet.sign(snapshot, SNAPSHOT)
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.snapshot_meta.version = snapshot.signed.version
    fleet.sign(timestamp, TIMESTAMP)
    device.hear([*old, file_of(SNAPSHOT, snapshot), file_of(TIMESTAMP, timestamp)])
    assert not device.may_take("1.0.0")


def test_key_compromise_is_ended_by_other_keys(device: Device, fleet: Repository) -> None:
    stolen = {role: seeds[0] for role, seeds in fleet.seeds.items()}
    thief = SigningKey(stolen[DIRECTOR])

    def believes(key: SigningKey) -> bool:
        try:
            device.trust.unseal(
                seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[key]),
                role="director",
                payload_type=DESIRED_PAYLOAD_TYPE,
            )
        except SignatureError:
            return False
        return True

    assert believes(thief)
    fleet.rotate(DIRECTOR)
    assert device.hear(fleet.files())
    assert not believes(thief)
    assert believes(fleet.director)

    fleet.rotate(RELEASES)
    assert device.hear(fleet.files())
    forged = altered(fleet.authored.lists[RELEASES])
    forged.signed.version += 1
    forged.signed.targets["digits/3.0.0"] = forged.signed.targets["digits/1.0.0"]
    forged.signatures.clear()
    fleet.sign(forged, seeds=[stolen[RELEASES]])
    device.hear(
        [*(f for f in fleet.files() if not f.name.endswith(RELEASES)), file_of(RELEASES, forged)]
    )
    assert not device.may_take("3.0.0")

    # One stolen root key of three is not enough, and goes as the others do.
    alone = altered(fleet.authored.root)
    alone.signed.version += 1
    fleet.sign(alone, seeds=[stolen[ROOT]])
    assert not device.hear([file_of(ROOT, alone)])
    fleet.rotate(ROOT)
    assert device.hear(fleet.files())
    assert device.trust.versions.root == 2


def test_files_may_come_in_any_order_and_one_by_one(device: Device, fleet: Repository) -> None:
    fleet.rotate(DIRECTOR)
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.rotate(ROOT)
    asked: list[int] = []
    device.trust.on_missing = lambda: asked.append(1)
    old = {file.name for file in device.fleet.authored.files()[:1]}
    for file in reversed([file for file in fleet.files() if file.name not in old]):
        device.hear([file])
    assert device.trust.refused == ""
    assert asked
    assert device.may_take("2.0.0")
    assert device.trust.versions.root == 2


@pytest.mark.parametrize("model", ["digits", "my.model-1.5", "x.json"])
def test_a_model_with_a_role_of_its_own_is_believed_by_that_alone(
    device: Device, fleet: Repository, model: str
) -> None:
    fleet.list(model, "5.0.0", DIGESTS["2.0.0"])
    device.trust.want(model)
    fleet.delegate(model)
    assert device.hear(fleet.files())
    assert device.trust.later(model, "5.0.0", DIGESTS["2.0.0"]) is None
    fleet.list(model, "6.0.0", DIGESTS["3.0.0"])
    assert device.hear(fleet.files())
    assert device.trust.later(model, "6.0.0", DIGESTS["3.0.0"]) is None


def test_keys_change_with_overlap(device: Device, fleet: Repository) -> None:
    old = fleet.director
    fleet.rotate(DIRECTOR, keep=True)
    assert device.hear(fleet.files())
    for key in (old, fleet.director):
        device.trust.unseal(
            seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[key]),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )


def test_a_device_that_was_away_for_many_changes_of_the_root_follows_them(
    device: Device, fleet: Repository
) -> None:
    for _ in range(4):
        fleet.rotate(ROOT)
        fleet.rotate(TIMESTAMP)
    assert device.hear(fleet.files())
    assert device.trust.versions.root == 9


def test_grace_lets_a_site_without_a_network_go_on(device: Device, fleet: Repository) -> None:
    device.start(grace_s=7 * DAY_S)
    device.clock.advance(5 * DAY_S)
    assert device.may_take("1.0.0")
    # Also what is brought by hand may have ended within that time.
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    assert device.hear(fleet.files())
    assert device.may_take("2.0.0")
    device.clock.advance(4 * DAY_S)
    assert not device.may_take("2.0.0")


def test_what_was_installed_goes_on_whatever_becomes_of_its_list(
    device: Device, fleet: Repository
) -> None:
    made = null_package("1.0.0")
    fleet.list_package(null_package("2.0.0", name="other"))
    with pytest.raises(SignatureError):
        opened(device, made)
    fleet.unlist("digits", "1.0.0")
    fleet.list_package(made)
    assert device.hear(fleet.files())
    assert opened(device, made)
    device.trust.accept(made.digest, {made.digest})
    fleet.unlist("digits", "1.0.0")
    assert device.hear(fleet.files())
    device.clock.advance(30 * DAY_S)
    for _ in range(2):
        assert opened(device, made)
        # But it is not taken anew.
        assert device.trust.later("digits", "1.0.0", made.digest) is not None
        device.start()
    # When it is gone from the disk, it is forgotten.
    device.trust.accept("f" * 64, {"f" * 64})
    with pytest.raises(SignatureError):
        opened(device, made)


def test_a_device_that_had_a_trust_file_goes_on_with_what_it_has(
    device: Device, fleet: Repository
) -> None:
    made = null_package("7.0.0")
    device.trust.adopt({made.digest})
    assert opened(device, made)
    device.start()
    other = null_package("8.0.0")
    device.trust.adopt({other.digest})
    with pytest.raises(SignatureError):
        opened(device, other)
    assert device.hear(fleet.files()) is False


def test_a_time_that_a_thief_claims_goes_with_his_key(device: Device, fleet: Repository) -> None:
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.expires = in_future(40 * 365)
    timestamp.signed.unrecognized_fields[ISSUED_FIELD] = int(in_future(30 * 365).timestamp())
    fleet.sign(timestamp, TIMESTAMP)
    device.hear([file_of(TIMESTAMP, timestamp)])
    assert not device.may_take("1.0.0")
    fleet.rotate(TIMESTAMP)
    fleet.rotate(SNAPSHOT)
    fleet.renew(fresh=True)
    assert device.hear(fleet.files())
    assert device.may_take("1.0.0")


@pytest.mark.few(3)
@pytest.mark.parametrize("issued", ["1e15", 2**62, -1, None, [1], "nan", True])
def test_an_impossible_time_is_refused(device: Device, fleet: Repository, issued: object) -> None:
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.unrecognized_fields[ISSUED_FIELD] = issued
    fleet.sign(timestamp, TIMESTAMP)
    assert not device.hear([file_of(TIMESTAMP, timestamp)])
    assert device.events.codes[-1] == "trust.malformed"
    assert device.may_take("1.0.0")


def test_a_restored_controller_hears_what_the_device_trusts(
    device: Device, fleet: Repository
) -> None:
    backup, before = fleet.authored, fleet.online
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.now_s += 60
    fleet.renew()
    assert device.hear(fleet.files())
    newest = device.trust.versions
    fleet.authored, fleet.online = backup, before
    fleet.now_s += 60
    fleet.renew()
    assert not device.hear(fleet.files())
    told = device.trust.versions
    assert told.lacks_files is True  # it gets everything, and says what it has seen
    assert told.roles == newest.roles
    assert "list releases" in dict(behind(fleet.authored, (), told, fleet.now_s))[RELEASES]
    device.start()
    assert device.trust.versions.roles == newest.roles
    (device.path / "trust" / "trusted.json").unlink()
    device.start()
    assert device.trust.versions.roles == newest.roles


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name", ["targets.json", "snapshot.json", "timestamp.json", "releases.json", "root.json"]
)
@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_file_that_is_damaged_or_lost_comes_again(
    device: Device, fleet: Repository, name: str, how: str
) -> None:
    asked: list[int] = []
    device.trust.on_missing = lambda: asked.append(1)
    path = device.path / "trust" / "metadata" / name
    path.unlink()
    if how == "damaged":
        path.write_bytes(b"\0" * 64)
    fleet.now_s += 60
    fleet.renew()
    for _ in range(2):
        asked.clear()
        has = device.trust.versions
        known = {ROOT: has.root, TARGETS: has.targets, SNAPSHOT: has.snapshot, **has.roles}
        if has.lacks_files is True:
            known = {}
        newer = [
            file
            for file in fleet.files()
            if (version := parse_file_name(file.name)[1]) is None
            or version > known.get(file.name.partition(".")[2], 0)
        ]
        device.hear(newer)
        if not asked:
            break
    assert device.trust.refused == ""
    assert device.may_take("1.0.0")
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    assert device.hear(fleet.files())
    assert device.may_take("2.0.0")


def test_names_that_nobody_vouches_for_are_forgotten(device: Device, fleet: Repository) -> None:
    for first in range(0, 70, 14):
        device.trust.want(*(f"model-{number}" for number in range(first, first + 14)))
    with pytest.raises(SignatureError):
        opened(device, null_package("1.0.0", name="desired"))
    fleet.list("other", "1.0.0", DIGESTS["3.0.0"])
    assert device.hear(fleet.files())
    assert device.trust.later("other", "1.0.0", DIGESTS["3.0.0"]) is None
    assert device.may_take("1.0.0")


@pytest.mark.parametrize("fault", ["ended", "delegates"])
def test_one_list_that_cannot_be_believed_keeps_nothing_else_away(
    device: Device, fleet: Repository, fault: str
) -> None:
    thief = fleet.director
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.rotate(DIRECTOR)
    listed = altered(fleet.authored.lists[RELEASES])
    if fault == "ended":
        listed.signed.expires = in_future(-1)
    else:
        keyid, key = next(iter(fleet.authored.keys(RELEASES).items()))
        nobody = DelegatedRole("nobody", [keyid], 1, terminating=False, paths=["*/*"])
        listed.signed.delegations = Delegations({keyid: key}, {"nobody": nobody})
    fleet.sign(listed, RELEASES)
    device.hear(
        [*(f for f in fleet.files() if not f.name.endswith(RELEASES)), file_of(RELEASES, listed)]
    )
    with pytest.raises(SignatureError):
        device.trust.unseal(
            seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[thief]),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )
    assert not device.may_take("2.0.0")
    assert device.events.codes[-1] in {"trust.list", None}


def test_a_thief_of_the_timestamp_hides_nothing_for_years(
    device: Device, fleet: Repository
) -> None:
    timestamp = altered(fleet.online.timestamp, version=fleet.online.timestamp.signed.version + 1)
    timestamp.signed.expires = in_future(10 * 365)
    fleet.sign(timestamp, TIMESTAMP)
    assert device.hear([file_of(TIMESTAMP, timestamp)])
    device.clock.advance(31 * DAY_S)
    assert device.may_take("1.0.0")
    device.clock.advance(2 * DAY_S)
    assert not device.may_take("1.0.0")


def test_a_device_with_the_root_of_another_fleet_says_so(tmp_path: Path, fleet: Repository) -> None:
    made = Device(tmp_path, Repository())
    assert not made.hear(fleet.files())
    assert "seems to be another fleet's: put the root.json of its own fleet" in made.trust.refused
    with pytest.raises(SignatureError, match="seems to be another fleet's"):
        made.trust.unseal(
            seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[fleet.director]),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )
    fleet.write_root(made.root)
    made.fleet = fleet
    made.start()
    assert made.hear(fleet.files())
    assert made.may_take("1.0.0")
    # A device that knows its fleet is not told to change its root by what a stranger sends.
    assert not made.hear(Repository().files())
    assert "another fleet" not in made.trust.refused
    assert "signed by 0/1 keys" in made.trust.refused


@pytest.mark.few(2)
@pytest.mark.parametrize("lost", ["", "missing", "damaged", "with the history"])
def test_another_root_in_the_place_of_a_lost_one_begins_anew(
    device: Device, fleet: Repository, lost: str
) -> None:
    fleet.rotate(ROOT)
    assert device.hear(fleet.files())
    made = null_package("1.0.0")
    device.trust.accept(made.digest, {made.digest})
    # A fleet that begins anew has another name. The device's own agent.toml may say so, or not.
    other = Repository() if lost else Repository(fleet=fleet.authored.fleet)
    other.list("digits", "2.0.0", DIGESTS["2.0.0"])
    other.write_root(device.root)
    assert not device.hear(other.files())  # it counts from the next start on
    assert device.trust.versions.root == 2
    # An agent of an earlier version has no such file; a storage may lose or change it.
    origin = device.path / "trust" / "origin.json"
    if lost == "damaged":
        origin.write_bytes(origin.read_bytes().replace(b"root", b"soot"))
    elif lost:
        origin.unlink()
    if lost == "with the history":
        shutil.rmtree(device.path / "trust" / "metadata" / "root_history")
    device.start()
    with pytest.raises(SignatureError):
        device.trust.unseal(
            seal(b"{}", payload_type=DESIRED_PAYLOAD_TYPE, keys=[fleet.director]),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )
    assert device.hear(other.files())
    assert device.may_take("2.0.0")
    assert not device.may_take("1.0.0")
    assert opened(device, made)
    # A newer root of the same fleet forgets nothing.
    other.rotate(ROOT)
    assert device.hear(other.files())
    device.root.write_bytes(other.authored.roots[1])
    device.start()
    assert device.trust.versions.root == 2
    assert device.may_take("2.0.0")


@pytest.mark.few(3)
@pytest.mark.parametrize("lost", ["missing", "damaged", "a folder", "a pipe"])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_root_that_is_lost_says_nothing_of_another_one(
    device: Device, fleet: Repository, lost: str, kept: int
) -> None:
    """Then floors go on to count: no older set is believed. An older agent noted no first root."""
    old = fleet.files()
    fleet.now_s += 60
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.unlist("digits", "1.0.0")
    fleet.rotate(ROOT)
    assert device.hear(fleet.files())
    trust = device.path / "trust"
    (trust / "origin.json").unlink()
    for path in (trust / "first.json", trust / "metadata" / "root_history" / "1.root.json")[kept:]:
        content = path.read_bytes()
        path.unlink()
        if lost == "damaged":
            path.write_bytes(content.replace(b'"sig":"', b'"sig":"0'))
        elif lost == "a folder":
            path.mkdir()
        elif lost == "a pipe" and path.name == "first.json":
            os.mkfifo(path)
    (trust / "trusted.json").unlink()
    device.start()
    assert not device.hear(old)
    assert not device.may_take("1.0.0")


def test_a_device_that_missed_that_its_fleet_began_anew_mends_it(
    device: Device, fleet: Repository
) -> None:
    """An earlier version noted the new root, and went on to believe what it had."""
    other = Repository()
    other.list("digits", "2.0.0", DIGESTS["2.0.0"])
    other.write_root(device.root)
    origin = Origin(root_sha256=sha256_hex(device.root.read_bytes()))
    place = device.path / "trust" / "origin.json"
    SealedFile(place, Origin, limit_bytes=MAX_BYTES).write(origin)
    device.start()
    assert device.hear(other.files())
    assert device.may_take("2.0.0")
    assert not device.hear(fleet.files())


def test_a_damaged_floor_is_written_again(device: Device, fleet: Repository) -> None:
    old = fleet.files()
    fleet.now_s += 60
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    assert device.hear(fleet.files())
    for name in ("floors.json", "floors.copy.json"):
        (device.path / "trust" / name).write_bytes(b"\0")
        device.start()
    _damage(device.path / "trust", "metadata")
    _damage(device.path / "trust", "short form")
    device.start()
    assert not device.hear(old)


def test_a_freeze_is_seen_by_a_clock_that_lies_in_the_past(
    device: Device, fleet: Repository
) -> None:
    device.clock.correct(-5 * 365 * DAY_S)
    assert device.may_take("1.0.0")
    device.clock.advance(2 * DAY_S)
    assert not device.may_take("1.0.0")


@pytest.mark.parametrize("end", ["stopped", "killed each seventh hour"])
def test_restarts_let_no_freeze_go_unseen(device: Device, fleet: Repository, end: str) -> None:
    # The clock of this board begins at the same time after each start.
    device.clock.correct(-5 * 365 * DAY_S)
    begins_s, step_s = device.clock.now_s(), 7 * 3600.0
    for _ in range(2):
        assert device.may_take("1.0.0")
        device.clock.advance(step_s)
        device.trust.tick()
        if end == "stopped":
            device.trust.note_time()
        device.clock.correct(begins_s - device.clock.now_s())
        device.start()
    device.clock.advance(step_s + DAY_S / 2)
    assert not device.may_take("1.0.0")


def test_a_flood_of_metadata_starts_few_checks(device: Device, fleet: Repository) -> None:
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    many = [MetadataFile(name=TIMESTAMP, content="")] * 7000
    device.hear([*many, *fleet.files()])
    assert device.may_take("2.0.0")
    results = device.path / "trust" / "job.result"
    for _ in range(40):
        device.trust.receive([MetadataFile(name=TIMESTAMP, content="{}")])
    before = results.stat().st_mtime_ns
    for _ in range(40):
        device.trust.receive([MetadataFile(name=TIMESTAMP, content="{}")])
    assert results.stat().st_mtime_ns == before
    fleet.list("digits", "3.0.0", DIGESTS["3.0.0"])
    device.trust.receive(fleet.files())
    device.clock.advance(CHECK_EVERY_S)
    device.trust.tick()
    assert device.may_take("3.0.0")


def opened(device: Device, made: SignedPackage) -> bool:
    """Open the index of a package as an agent does that loads it."""
    device.trust.unseal(made.envelope, role="release", payload_type=PAYLOAD_TYPE)
    return True


def _newer(fleet: Repository) -> tuple[MetadataFile, ...]:
    fleet.now_s += 60
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    return fleet.files()


def _damage(folder: Path, lost: str) -> None:
    harmed: dict[str, Callable[[Path], bool]] = {
        "nothing": lambda _path: False,
        "metadata": lambda path: path.parent.name == "metadata",
        "short form": lambda path: path.name == "trusted.json",
        "all but a floor": lambda path: path.name != "floors.json",
        "one floor": lambda path: (
            path.name in {"floors.json", "trusted.json"} or path.parent.name == "metadata"
        ),
    }
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and harmed[lost](path):
            path.write_bytes(b"\0" * 64)
