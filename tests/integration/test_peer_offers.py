"""Devices of one site are told of each other: where each serves, who has what, and nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from controller.domain.faults import QUIET_S
from controller.domain.peers import ASKED_S, LINK_S
from controller.peer_settings import PeersConfig
from controller.store import peers, releases
from controller.store.database import Database, migrate
from controller.store.device_tables import DeviceRow
from controller.store.peers import MAX_NEIGHBOURS, Neighbour
from tests.simulators.controller_fleet import Fleet, FleetDevice, names
from tests.simulators.packages import PROFILE, TRUST, package, two_variants, variant
from tests.simulators.patience import until
from tests.simulators.stored_fleet import (
    DIGEST,
    OLD_FLEET,
    OTHER,
    THIRD,
    add_device,
    add_release,
    add_told,
    run,
)
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, SourceRequest, Sources
from wire.errors import SignatureError
from wire.messages import decode_message
from wire.transport import Received
from wire.trust.peer_links import check_peer_link

pytestmark = pytest.mark.flow

ONE, TWO = two_variants("1", best="one", small="one's"), two_variants("2", best="two")
BEST = sha256_hex(b"two")
FOURTH = "d" * 64
FILES = tuple(entry.sha256 for entry in TWO.index.files)
CAMS = names("cam", 10)

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests that ask the database nothing new."""


class Site:
    """A fleet at work: devices serve their neighbours, and ask for sources."""

    def __init__(self, database_url: str, directory: Path, config: PeersConfig) -> None:
        self.fleet = Fleet(database_url, directory)
        self.answers: dict[str, list[Received]] = {}
        self.use(config)

    def use(self, config: PeersConfig) -> None:
        """Start the controller again with other settings."""
        self.fleet.config = msgspec.structs.replace(self.fleet.config, peers=config)
        self.fleet.kill()
        self.fleet.controller.delivery.start()

    def add(self, *devices: str, serves: bool = True, **labels: str) -> None:
        """Enrol devices and let them connect."""
        self.fleet.enrol(*devices, **labels)
        for device in devices:
            self.answers[device] = []
            self.fleet.hub.on(topics.down(device, "sources"), self.answers[device].append)
            if serves:
                self.serve(device, f"http://192.168.0.{len(self.answers)}:8471")

    def serve(self, device: str, url: str | None) -> FleetDevice:
        """Let a device connect and say where it serves."""
        found = self.fleet.devices[device]
        found.peer_url = msgspec.UNSET if url is None else url
        found.connect()
        return found

    def shown(self, device: str) -> object:
        return self.fleet.api.get(f"/v1/devices/{device}").raise_for_status().json()["peer_url"]

    def bring(self, selector: str = "", *, outcome: str = "succeeded") -> None:
        """Let devices install the second release, or begin to."""
        for device in self.fleet.devices.values():
            device.outcome = "busy" if outcome == "busy" else "succeeded"
        rollout = self.fleet.roll_out("digits:2", selector=selector, stages=[{"percent": 100}])
        if outcome == "busy":
            self.fleet.step()
        else:
            assert self.fleet.run(rollout)["state"] == "succeeded"

    def ask(self, device: str, *blobs: str) -> Sources:
        """Let a device ask for sources, and return the answer."""
        before = len(self.answers[device])
        request = SourceRequest(device=device, nonce="n", blobs=blobs or FILES)
        self.fleet.hub.deliver(Received(topics.up(device, "source_request"), to_json(request)))
        until(lambda: len(self.answers[device]) > before, "sources")
        payload = TRUST.unseal(
            self.answers[device][-1].payload, role="director", payload_type=SOURCES_PAYLOAD_TYPE
        )
        return decode_message(payload, Sources)

    def links(self, device: str, blob: str = BEST, *others: str) -> list[str]:
        """Return the links to a blob that a device gets from neighbours."""
        for each in self.ask(device, blob, *others).blobs:
            if each.sha256 == blob and isinstance(each.peers, tuple):
                return list(each.peers)
        return []

    def peers(self, device: str, blob: str = BEST) -> list[str]:
        """Return which devices a device is told, after a check of each link."""
        return [self.checked(link, device, blob) for link in self.links(device, blob)]

    def checked(self, link: str, device: str, blob: str) -> str:
        parts = urlsplit(link)
        (peer,) = (
            name
            for name, each in self.fleet.devices.items()
            if each.peer_url == f"{parts.scheme}://{parts.netloc}"
        )
        assert parts.path == f"/blobs/{blob}"
        now_s = self.fleet.clock.now_s()
        found = check_peer_link(TRUST.director, parts.query, peer=peer, sha256=blob, now_s=now_s)
        assert found.device == device
        assert now_s < found.until_s <= now_s + LINK_S
        return peer


def add_neighbour(session: Session, name: str, runs: str | None) -> None:
    row = add_device(session, name, site="roof")
    row.online, row.peer_url = True, "http://192.168.0.1:8471"
    if runs is not None:
        add_told(session, row, runs)


def near(
    session: Session,
    device: str,
    fetching: Sequence[str] = (),
    blobs: Sequence[str] = (THIRD,),
    *,
    site: str = "roof",
) -> list[Neighbour]:
    return peers.neighbours(
        session, device, label="site", site=site, blobs=blobs, fetching=fetching
    )


@pytest.fixture
def site(database_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return five devices on the roof that have nothing, and a release for them."""
    made = Site(database_url, tmp_path, PeersConfig(label="site"))
    made.fleet.publish(ONE)
    made.fleet.publish(TWO)
    made.add(*CAMS[:5], site="roof")
    yield made
    made.fleet.close()


def test_of_ten_devices_that_begin_at_once_the_first_fetches_from_afar(site: Site) -> None:
    site.add(*CAMS[5:], site="roof")
    site.bring(outcome="busy")
    assert site.peers("cam-000") == []
    assert site.peers("cam-001") == ["cam-000"]
    for cam in CAMS[2:]:
        first, second = site.peers(cam)
        assert first == "cam-000"
        assert "cam-000" < second < cam
    assert site.peers("cam-000") == [], "nobody whom it was told to"


def test_later_devices_are_sent_to_those_that_run_the_release(site: Site) -> None:
    site.add(*CAMS[5:], site="roof")
    site.add("cellar-1", site="cellar")
    site.add("lone-1")
    site.bring(selector="id in (cam-000,cam-001,cam-002,cellar-1,lone-1)")
    site.bring(selector="id notin (cam-000,cam-001,cam-002,cellar-1,lone-1)", outcome="busy")
    told = {cam: site.peers(cam) for cam in CAMS[3:]}
    for found in told.values():
        assert len(set(found)) == 2
        assert set(found) <= {"cam-000", "cam-001", "cam-002"}
    assert len({tuple(found) for found in told.values()}) > 1, "not all to the same"
    assert told == {cam: site.peers(cam) for cam in CAMS[3:]}


def test_who_serves_one_variant_while_the_others_come_does_not_have_them_all(site: Site) -> None:
    site.bring(selector="id in (cam-000,cam-003,cam-004)", outcome="busy")
    early = site.fleet.devices["cam-000"]
    early.active, wanted = TWO.digest, early.accepted[-1]
    early.report(wanted.revision, TWO.digest, "busy")
    assert site.fleet.api.get("/v1/devices/cam-000").json()["release"] == "digits:2"
    assert site.peers("cam-003") == [], "it may not have it, and has not asked for it"
    assert site.peers("cam-000") == ["cam-003"]
    assert site.peers("cam-004") == ["cam-003", "cam-000"]
    early.report(wanted.revision, TWO.digest, "succeeded")
    assert site.peers("cam-004") == ["cam-000", "cam-003"]


def test_who_is_away_or_out_of_the_fleet_or_serves_nobody_is_not_told(site: Site) -> None:
    site.bring(selector="id in (cam-000,cam-001,cam-002,cam-003)")
    site.bring(selector="id=cam-004", outcome="busy")
    site.fleet.devices["cam-000"].leave()
    for cam, state in (("cam-001", "decommissioned"), ("cam-002", "quarantined")):
        site.fleet.api.patch(f"/v1/devices/{cam}", json={"state": state}).raise_for_status()
    assert site.peers("cam-004") == ["cam-003"]
    site.serve("cam-003", None)
    assert site.peers("cam-004") == []


@on_sqlite
def test_who_is_out_of_the_fleet_is_told_nothing(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    assert site.peers("cam-004") == ["cam-000"]
    site.fleet.api.patch("/v1/devices/cam-004", json={"state": "decommissioned"}).raise_for_status()
    assert site.ask("cam-004").blobs == ()


@on_sqlite
def test_a_revoked_release_comes_from_no_peer(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    site.fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    assert site.ask("cam-004").blobs == ()


@on_sqlite
def test_a_device_without_a_site_has_no_peers(site: Site) -> None:
    site.add("lone-1", "lone-2")
    site.bring(selector="id=lone-1")
    site.bring(selector="id=lone-2", outcome="busy")
    assert site.ask("lone-2").blobs == ()


def test_a_device_is_told_only_what_its_neighbours_keep(site: Site) -> None:
    """A smaller board runs the same release without the large variant."""
    large = variant("large", accuracy=0.99, memory_bytes=2**31)
    both = package("3", [(large, b"large"), (variant("small"), b"small")])
    site.fleet.publish(both)
    big = site.fleet.device("big-1", site="roof")
    big.profile = msgspec.structs.replace(PROFILE, name="big", memory_bytes=2**33)
    token = site.fleet.api.post("/v1/tokens", json={}).json()["token"]
    assert big.ask_to_enrol(token).accepted
    site.answers["big-1"] = []
    site.fleet.hub.on(topics.down("big-1", "sources"), site.answers["big-1"].append)
    site.serve("big-1", "http://192.168.0.99:8471")
    rollout = site.fleet.roll_out("digits:3", selector="id=cam-000", stages=[{"percent": 100}])
    assert site.fleet.run(rollout)["state"] == "succeeded"
    big.outcome = "busy"
    site.fleet.roll_out("digits:3", selector="id=big-1", stages=[{"percent": 100}])
    site.fleet.step()
    told = {each.sha256: each for each in site.ask("big-1", *map(sha256_hex, both.blobs)).blobs}
    assert sha256_hex(b"small") in told
    assert sha256_hex(b"large") not in told, "cam-000 does not keep it"
    assert sha256_hex(both.envelope) not in told, "its signature comes from the controller"


@on_sqlite
def test_a_link_is_for_one_device_one_peer_and_one_blob(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    (link,) = site.links("cam-004")
    query, now_s = urlsplit(link).query, site.fleet.clock.now_s()
    right = {"peer": "cam-000", "sha256": BEST, "now_s": now_s}
    assert check_peer_link(TRUST.director, query, **right).device == "cam-004"  # type: ignore[arg-type]
    for wrong in ({"peer": "cam-001"}, {"sha256": OTHER}, {"now_s": now_s + LINK_S}):
        with pytest.raises(SignatureError):
            check_peer_link(TRUST.director, query, **(right | wrong))  # type: ignore[arg-type]
    with pytest.raises(SignatureError):
        check_peer_link(TRUST.director, query.replace("cam-004", "cam-003"), **right)  # type: ignore[arg-type]


@on_sqlite
def test_a_restart_forgets_who_asked_and_nothing_else(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id in (cam-003,cam-004)", outcome="busy")
    assert site.peers("cam-003") == ["cam-000"]
    assert site.peers("cam-004") == ["cam-000", "cam-003"]
    site.use(PeersConfig(label="site"))
    assert site.peers("cam-004") == ["cam-000"]
    assert site.peers("cam-003") == ["cam-000", "cam-004"]


@on_sqlite
def test_who_asked_long_ago_is_not_waited_for(site: Site) -> None:
    site.bring(outcome="busy")
    site.peers("cam-000")
    site.fleet.clock.advance(ASKED_S)
    assert site.peers("cam-001") == []


@on_sqlite
def test_without_the_settings_nobody_is_told_of_neighbours(site: Site) -> None:
    site.use(PeersConfig())
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    assert site.ask("cam-004").blobs == ()
    assert site.shown("cam-000") == "http://192.168.0.1:8471", "it is known when they are set"


@on_sqlite
def test_devices_know_that_they_may_ask_also_without_downloads(site: Site) -> None:
    site.bring()
    assert site.fleet.config.downloads.port is None
    assert site.fleet.devices["cam-000"].accepted[-1].has_sources is True


@on_sqlite
def test_an_answer_without_peers_comes_also_when_a_package_cannot_be_read(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    shutil.rmtree(site.fleet.config.blobs_dir)
    site.use(PeersConfig(label="site"))
    assert site.ask("cam-004").blobs == ()


@on_sqlite
def test_networks_that_are_taken_away_count_at_once(site: Site) -> None:
    site.bring(selector="id=cam-000")
    site.bring(selector="id=cam-004", outcome="busy")
    assert site.peers("cam-004") == ["cam-000"]
    site.use(PeersConfig(label="site", networks=("10.0.0.0/8",)))
    assert site.shown("cam-000") == "http://192.168.0.1:8471"
    assert site.peers("cam-004") == []


def test_where_a_device_serves_is_kept_until_it_says_something_else(site: Site) -> None:
    assert site.shown("cam-000") == "http://192.168.0.1:8471"
    site.serve("cam-000", "http://[fd00::7]:80")
    assert site.shown("cam-000") == "http://[fd00::7]:80"
    site.serve("cam-000", None)
    assert site.shown("cam-000") is None
    site.serve("cam-000", "http://10.0.0.1:8471").leave()
    assert site.shown("cam-000") == "http://10.0.0.1:8471"


@on_sqlite
def test_a_device_that_enrols_again_begins_without_an_address(site: Site) -> None:
    for change in ({"state": "decommissioned"}, {"may_enrol_again": True}):
        site.fleet.api.patch("/v1/devices/cam-000", json=change).raise_for_status()
    token = site.fleet.api.post("/v1/tokens", json={}).json()["token"]
    assert site.fleet.devices["cam-000"].ask_to_enrol(token).accepted
    assert site.shown("cam-000") is None


@on_sqlite
def test_what_is_no_address_of_a_device_is_not_kept_and_is_told_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = (
        "http://router.lan:80",
        "http://[::ffff:c0a8:1]:80",
        "http://192.168.0.1:80/admin?reboot=1",
        "http://admin:secret@192.168.0.1:80",
        "http://0300.0250.0.1:80",
        "http://" + "9" * 100_000,
        "",
    )
    for url in hostile:
        caplog.clear()
        site.fleet.clock.advance(QUIET_S)
        for _ in range(3):
            site.serve("cam-000", url)
        assert site.shown("cam-000") is None
        shown = site.fleet.api.get("/v1/devices/cam-000").json()
        assert shown["last_seen_at_s"] == site.fleet.clock.now_s(), "all else that it says counts"
        (line,) = (each for each in caplog.messages if "for its peers" in each)
        assert line.startswith("the address of device cam-000 for its peers ")
        assert "secret" not in line
        assert len(line) < 200


@on_sqlite
def test_an_address_outside_the_networks_is_shown_with_the_reason_and_told_to_nobody(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(device: str) -> object:
        return site.fleet.api.get(f"/v1/devices/{device}").raise_for_status().json()["peer_fault"]

    assert fault("cam-000") == ""
    site.serve("cam-000", "http://8.8.8.8:80")
    assert site.shown("cam-000") == "http://8.8.8.8:80"
    assert fault("cam-000") == "it names 8.8.8.8, which is in none of peers.networks"
    assert any("names 8.8.8.8" in each for each in caplog.messages)
    site.use(PeersConfig(label="site", networks=("8.8.8.0/24",)))
    assert fault("cam-000") == "", "it counts without another hello"
    site.use(PeersConfig(label="room"))
    assert fault("cam-000") == "it has no label room"
    site.use(PeersConfig())
    assert fault("cam-000") == "peers.label is not set on the controller"


def test_a_large_site_costs_one_more_statement_and_is_bounded(database: Database) -> None:
    devices = names("cam", 300)
    with database.transaction() as session:
        add_release(session)
        add_release(session, OTHER, "2")
        for name in devices:
            add_neighbour(session, name, DIGEST)
    statements: list[str] = []
    event.listen(
        database.engine,
        "before_cursor_execute",
        lambda _c, _k, statement, *_: statements.append(statement),
    )
    with database.reading() as session:
        found = near(session, "cam-290")
    assert len(statements) <= 2, "one, and BEGIN"
    assert [each.id for each in found] == [*devices[291:], *devices[: MAX_NEIGHBOURS - 9]]
    assert {each.runs for each in found} == {found[0].runs}
    with database.reading() as session:
        assert near(session, "cam-290", fetching=["cam-280"])[0].id == "cam-280"
        assert near(session, "cam-290", blobs=[OTHER]) == []
        assert [each.id for each in near(session, "cam-290", ["cam-280"], [OTHER])] == ["cam-280"]
        assert near(session, "cam-290", site="cellar", fetching=["cam-280"]) == []


def test_those_whose_release_has_most_come_first(database: Database) -> None:
    with database.transaction() as session:
        releases.add(session, add_release(session), [(OTHER, 1)])
        add_release(session, OTHER, "2")
        add_neighbour(session, "cam-1", OTHER)
        add_neighbour(session, "cam-2", DIGEST)
        add_neighbour(session, "cam-3", None)
        add_neighbour(session, "cam-4", "f" * 64)
    with database.reading() as session:
        found = near(session, "cam-0", fetching=["cam-3"], blobs=[THIRD, OTHER])
    assert [each.id for each in found] == ["cam-3", "cam-2", "cam-1"]
    assert found[0].runs == ()


def test_each_model_of_a_neighbour_counts_and_one_that_only_fetches_is_found_once(
    database: Database,
) -> None:
    with database.transaction() as session:
        add_release(session)
        releases.add(session, add_release(session, OTHER, name="faces"), [(FOURTH, 1)])
        for name in ("cam-1", "cam-2"):
            add_neighbour(session, name, DIGEST if name == "cam-1" else "f" * 64)
            row = session.get_one(DeviceRow, name)
            add_told(session, row, OTHER if name == "cam-1" else "e" * 64, model="faces")
    with database.reading() as session:
        both = near(session, "cam-0", fetching=["cam-2"], blobs=[THIRD, FOURTH])
        one = near(session, "cam-0", blobs=[FOURTH])
    assert [(each.id, {runs.digest for runs in each.runs}) for each in both] == [
        ("cam-2", set()),
        ("cam-1", {DIGEST, OTHER}),
    ]
    assert [(each.id, [runs.digest for runs in each.runs]) for each in one] == [("cam-1", [OTHER])]


def test_files_of_each_model_come_from_neighbours(site: Site) -> None:
    faces = package("1", [(variant("best"), b"faces")], name="faces")
    site.fleet.publish(faces)
    site.bring()
    site.fleet.run(site.fleet.roll_out("faces:1", selector="id in (cam-000,cam-001)"))
    site.fleet.devices["cam-004"].outcome = "busy"
    site.fleet.roll_out("faces:1", selector="id=cam-004")
    site.fleet.step()
    assert set(site.peers("cam-004", sha256_hex(b"faces"))) <= {"cam-000", "cam-001"}
    assert site.peers("cam-004", sha256_hex(b"faces"))
    assert site.peers("cam-004", BEST), "the other model, which it has to run as well"


def test_the_migration_keeps_devices_up_and_down(empty_database_url: str) -> None:
    migrate(empty_database_url, "0002")
    run(empty_database_url, OLD_FLEET)
    migrate(empty_database_url)
    database = Database(empty_database_url)
    try:
        with database.transaction() as session:
            row = session.get_one(DeviceRow, "cam-1")
            assert row.peer_url is None
            row.peer_url = "http://192.168.0.1:8471"
        migrate(empty_database_url, "0009")
        migrate(empty_database_url)
        with database.reading() as session:
            assert session.get_one(DeviceRow, "cam-1").peer_url is None
    finally:
        database.close()
