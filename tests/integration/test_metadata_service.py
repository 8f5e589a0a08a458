"""The controller with trusted metadata: what it takes, what it signs, and what it sends to whom."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.errors import StorageError
from controller.metadata.edit import undelegated
from controller.metadata.online import OnlineSigner
from controller.metadata.store import FOLDER, MetadataStore, authored_of
from controller.services.metadata import FleetMetadata, Lives
from controller.store.database import Database
from tests.simulators.agent_process import null_package
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import Fleet, FleetDevice, make_home
from tests.simulators.packages import DIRECTOR_KEY
from tests.simulators.repository import DAY_S, Repository, altered, file_of
from wire import topics
from wire.codec import sha256_hex
from wire.desired import DESIRED_PAYLOAD_TYPE, desired_from_json
from wire.enrolling import EnrolReply
from wire.enrolment import enrol_username, return_password
from wire.messages import decode_message
from wire.metadata import MetadataFiles, MetadataVersions
from wire.trust.envelope import unseal
from wire.trust.roles import RELEASES, SNAPSHOT, TARGETS, TIMESTAMP

NOTHING = MetadataVersions(root=1)


class Trusting(Fleet):
    """A fleet whose controller has trusted metadata from the beginning."""

    def __init__(self, directory: Path) -> None:
        self.repository = Repository(now_s=FakeClock().now_s(), director=b"d" * 32)
        make_home(directory, "sqlite://")
        store = MetadataStore(directory / FOLDER)
        store.keep_authored(self.repository.authored)
        for role in (SNAPSHOT, TIMESTAMP):
            (directory / f"keys/{role}.key").write_bytes(self.repository.seeds[role][0])
        super().__init__(f"sqlite:///{directory / 'controller.db'}", directory)
        self.step()

    def submit(self) -> Any:
        """Send what people have signed."""
        files = {file.name: file.content for file in self.repository.authored.files()}
        return self.api.post("/v1/metadata", json={"files": files})


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Trusting]:
    made = Trusting(tmp_path)
    yield made
    made.close()


def greet(fleet: Fleet, device: FleetDevice, versions: MetadataVersions) -> list[str]:
    """Greet, and return what comes: names of files, and `desired`."""
    before = len(fleet.hub.published)
    device.metadata = versions
    device.connect()
    return list(dict.fromkeys(came(fleet, device.name, before)))


def came(fleet: Fleet, device: str, since: int) -> list[str]:
    found: list[str] = []
    for message in fleet.hub.published[since:]:
        if message.topic == topics.down(device, "metadata"):
            files = decode_message(message.payload, MetadataFiles).files
            found += [file.name.rpartition(".")[2] for file in files]
        elif message.topic == topics.down(device, "desired"):
            found.append("desired")
    return found


def listed(fleet: Trusting, version: str = "1.0.0") -> str:
    made = null_package(version)
    fleet.repository.list_package(made)
    fleet.submit().raise_for_status()
    return fleet.publish(made)


def test_a_package_that_is_not_listed_is_refused(fleet: Trusting) -> None:
    made = null_package("1.0.0")
    for blob in made.blobs:
        fleet.api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
    body = {"envelope_sha256": made.ref.envelope_sha256}
    refused = fleet.api.post("/v1/releases", json=body)
    assert refused.status_code == 422
    assert "no trusted list has this package as digits:1.0.0" in refused.json()["message"]
    assert "--key" in refused.json()["remedy"]
    fleet.repository.list("digits", "1.0.0", secrets.token_hex(32))
    fleet.submit().raise_for_status()
    assert fleet.api.post("/v1/releases", json=body).status_code == 422


def test_a_release_that_was_taken_off_its_list_is_not_rolled_out(fleet: Trusting) -> None:
    release = listed(fleet)
    fleet.enrol("cam-1")
    fleet.repository.unlist("digits", "1.0.0")
    fleet.submit().raise_for_status()
    body = {"release": release, "selector": "id=cam-1", "stages": [{"count": 1}]}
    refused = fleet.api.post("/v1/rollouts", json=body)
    assert refused.status_code == 409, refused.text
    assert "no trusted list has digits:1.0.0" in refused.json()["message"]


def test_a_device_gets_what_it_lacks_before_its_desired_state(fleet: Trusting) -> None:
    release = listed(fleet)
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    fleet.roll_out(release)
    fleet.step()
    device.revision = 0
    assert greet(fleet, device, NOTHING) == [
        "targets", "releases", "snapshot", "timestamp", "desired",
    ]  # fmt: skip
    state = fleet.api.get("/v1/metadata").json()["roles"]
    has = {role["role"]: role["version"] for role in state}
    whole = MetadataVersions(
        root=1,
        timestamp=has[TIMESTAMP],
        snapshot=has[SNAPSHOT],
        targets=has["targets"],
        roles={RELEASES: has[RELEASES]},
    )
    assert greet(fleet, device, whole) == []
    late = msgspec.structs.replace(whole, lacks_desired=True)
    assert greet(fleet, device, late) == ["desired"]
    old = msgspec.structs.replace(whole, roles={RELEASES: has[RELEASES] - 1})
    assert greet(fleet, device, old) == ["releases"]
    unknown = msgspec.structs.replace(whole, roles={})
    assert greet(fleet, device, unknown) == ["releases"]
    damaged = msgspec.structs.replace(whole, lacks_files=True)
    assert greet(fleet, device, damaged) == ["root", "targets", "releases", "snapshot", "timestamp"]


def test_a_desired_state_says_until_when_it_counts(fleet: Trusting) -> None:
    release = listed(fleet)
    fleet.enrol("cam-1")
    fleet.roll_out(release)
    fleet.step()
    envelope = fleet.api.get("/v1/devices/cam-1/desired").json()["envelope"].encode()
    payload = unseal(
        envelope,
        payload_type=DESIRED_PAYLOAD_TYPE,
        public_keys=[DIRECTOR_KEY.public_key],
    )
    desired = desired_from_json(payload)
    assert isinstance(desired.expires_at_s, float)
    assert 7 * DAY_S < desired.expires_at_s - fleet.clock.now_s() < 9 * DAY_S
    state = fleet.api.get("/v1/metadata").json()["roles"]
    versions = {role["role"]: role["version"] for role in state}
    assert desired.timestamp == versions[TIMESTAMP]


def test_a_timestamp_is_renewed_before_it_ends_and_goes_to_who_is_online(
    fleet: Trusting,
) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.devices["cam-2"].leave()
    before = len(fleet.hub.published)
    fleet.step(DAY_S / 2)
    assert came(fleet, "cam-1", before) == []
    fleet.devices["cam-1"].connect()
    before = len(fleet.hub.published)
    fleet.step(DAY_S / 3)
    assert came(fleet, "cam-1", before) == ["root", "targets", "snapshot", "timestamp"]
    assert came(fleet, "cam-2", before) == []


def test_a_controller_that_is_killed_goes_on_with_the_same_metadata(fleet: Trusting) -> None:
    listed(fleet)
    before = fleet.api.get("/v1/metadata/files").json()
    fleet.kill()
    fleet.step()
    assert fleet.api.get("/v1/metadata/files").json() == before


def test_another_controller_with_the_same_folder_follows(fleet: Trusting, tmp_path: Path) -> None:
    store = MetadataStore(tmp_path / FOLDER)
    online, timestamp = (
        OnlineSigner(role, (tmp_path / f"keys/{role}.key").read_bytes())
        for role in (SNAPSHOT, TIMESTAMP)
    )
    database = Database(fleet.config.database_url)
    second = FleetMetadata(
        store, (online, timestamp), fleet.transport, database, fleet.clock,
        lives=Lives(timestamp_s=DAY_S, desired_s=DAY_S),
    )  # fmt: skip
    before = second.everything()
    listed(fleet)
    assert second.everything() == before
    second.follow()
    first = fleet.api.get("/v1/metadata").json()["roles"]
    assert {role["role"]: role["version"] for role in first} == {
        role.role: role.version for role in second.state().roles
    }
    with store.alone(), pytest.raises(StorageError, match="another controller"):
        second.submit(())
    database.close()


def test_what_is_not_signed_changes_nothing(fleet: Trusting) -> None:
    before = fleet.api.get("/v1/metadata/files").json()
    repository = fleet.repository
    forged = altered(repository.authored.lists[RELEASES])
    forged.signed.version += 1
    repository.sign(forged, TIMESTAMP)
    file = file_of(RELEASES, forged)
    for files in (
        {file.name: file.content},
        {"2.root": "{}"},
        {"../root": "{}"},
        {"9.releases": "[" * 5000},
        {"2.root": '{"signed": {"_type": "root", "\\ud800": 1}, "signatures": []}'},
        {"nothing": ""},
    ):
        refused = fleet.api.post("/v1/metadata", json={"files": files})
        assert refused.status_code == 422, refused.text
        assert "\n" not in refused.json()["message"]
    assert fleet.api.get("/v1/metadata/files").json() == before


def test_a_role_that_comes_again_needs_a_newer_list(fleet: Trusting) -> None:
    """Devices that saw the list of before would believe nothing any more."""
    repository = fleet.repository
    repository.delegate("digits")
    fleet.submit().raise_for_status()
    old, of_before = repository.authored, repository.online
    repository.now_s += 60
    repository.change(TARGETS, undelegated(old, "digits", repository.now_s).targets)
    fleet.submit().raise_for_status()
    held, online = repository.authored, repository.online
    repository.now_s -= 60
    repository.online = of_before
    repository.delegate("digits")
    refused = fleet.submit()
    assert refused.status_code == 422, refused.text
    assert "digits does not follow" in refused.json()["message"]
    repository.authored, repository.online = held, online
    repository.authored = authored_of(repository.files())
    repository.delegate("digits")
    fleet.submit().raise_for_status()


def test_other_online_keys_are_used_after_the_next_start(fleet: Trusting, tmp_path: Path) -> None:
    repository = fleet.repository
    repository.rotate(TIMESTAMP)
    state = fleet.submit().json()
    assert "may not sign timestamp" in state["fault"]
    assert state["roles"][0]["version"] == 2
    (tmp_path / "keys/timestamp.key").write_bytes(repository.seeds[TIMESTAMP][0])
    fleet.kill()
    fleet.step()
    fleet.enrol("cam-1")
    got = greet(fleet, fleet.devices["cam-1"], NOTHING)
    assert got == ["root", "targets", "snapshot", "timestamp"]


def test_an_enrolment_brings_what_a_new_device_needs_to_know_the_director(
    fleet: Trusting,
) -> None:
    fleet.enrol("cam-1")
    reply: EnrolReply = fleet.devices["cam-1"].replies[-1]
    assert not isinstance(reply.metadata, msgspec.UnsetType)
    assert [file.name.rpartition(".")[2] for file in reply.metadata] == [
        "targets", "snapshot", "timestamp",
    ]  # fmt: skip
    password = return_password(fleet.repository.authored.fleet)
    assert fleet.access.enrolment[enrol_username(password)] == password


def test_a_restored_controller_tells_which_list_must_be_signed_again(
    fleet: Trusting, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.enrol("cam-1")
    lie = MetadataVersions(root=1, roles={RELEASES: 2**40})
    greet(fleet, fleet.devices["cam-1"], lie)
    assert "fleet key sign releases" not in caplog.text
    ahead = MetadataVersions(root=1, roles={RELEASES: int(fleet.clock.now_s()) + 60})
    greet(fleet, fleet.devices["cam-1"], ahead)
    assert "fleet key sign releases" in caplog.text
    greet(fleet, fleet.devices["cam-1"], MetadataVersions(root=2))
    assert "do not sign another root" in caplog.text


def test_the_operator_sees_which_devices_have_not_moved_to_the_metadata(fleet: Trusting) -> None:
    fleet.enrol("cam-1", "cam-2")
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    assert fleet.device("cam-3").ask_to_enrol(token).accepted  # and it is never heard of again
    fleet.devices["cam-1"].metadata = NOTHING
    fleet.devices["cam-1"].connect()
    fleet.devices["cam-2"].metadata = msgspec.UNSET
    fleet.devices["cam-2"].connect()

    def shown() -> tuple[dict[str, bool | None], int, int]:
        found = fleet.api.get("/v1/devices").json()
        trusts = {device["id"]: device["trust_file"] for device in found}
        state = fleet.api.get("/v1/metadata").json()
        return trusts, state["trust_file_devices"], state["unknown_devices"]

    assert shown() == ({"cam-1": False, "cam-2": True, "cam-3": None}, 1, 1)
    fleet.devices["cam-2"].metadata = NOTHING
    fleet.devices["cam-2"].connect()
    fleet.api.patch("/v1/devices/cam-3", json={"state": "decommissioned"}).raise_for_status()
    assert shown() == ({"cam-1": False, "cam-2": False, "cam-3": None}, 0, 0)


def test_a_fleet_with_a_trust_file_has_no_metadata(tmp_path: Path) -> None:
    plain = Fleet(f"sqlite:///{tmp_path / 'controller.db'}", tmp_path)
    try:
        for path in ("/v1/metadata", "/v1/metadata/files"):
            answer = plain.api.get(path)
            assert (answer.status_code, answer.json()["code"]) == (
                404,
                "controller.unknown.metadata",
            )
            assert "fleet key init" in answer.json()["remedy"]
        plain.enrol("cam-1")
        device = plain.devices["cam-1"]
        assert isinstance(device.replies[-1].metadata, msgspec.UnsetType)
        assert greet(plain, device, NOTHING) == []
    finally:
        plain.close()
