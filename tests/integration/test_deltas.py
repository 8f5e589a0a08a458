"""Deltas as the controller makes, keeps and offers them, with packages that it has published."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from controller.app.backup import back_up
from controller.app.new_home import HomeOptions, create_home
from controller.app.restore import restore
from controller.cli.release_view import show_release
from controller.config import DeltasConfig
from controller.delivery.deltas import FAILED_S, KNOWN_S, TRIM_EVERY_S, Deltas
from controller.domain.deltas import EMPTY
from controller.domain.states import DeltaState
from controller.release_schemas import Release
from controller.services.blobs import DELTAS_FOLDER, BlobStore
from controller.store import deltas, releases
from controller.store.database import Database, migrate
from controller.store.release_tables import DeltaRow
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import Fleet
from tests.simulators.deltas import applied
from tests.simulators.packages import SignedPackage, package, variant
from tests.simulators.patience import until
from tests.simulators.versions import noise, trained, version
from wire import topics
from wire.codec import from_json, sha256_hex, to_json
from wire.delivery import Chunk, ChunkRequest, DeltaSource
from wire.delta import layout
from wire.messages import decode_message
from wire.transport import Received
from wire.trust.envelope import SigningKey

NAME = "cam-000"
ONE = version("1", best=trained())
TWO = version("2", best=trained(1))
TO_TWO = sha256_hex(trained(1))
SLOW_KIB = 8 * 1024
"""Without known tensors, making a delta to a file of that size takes seconds."""


def at_work(database_url: str, folder: Path) -> Iterator[Fleet]:
    """Yield a fleet of one device that runs the first version; nobody makes deltas yet."""
    made = Fleet(database_url, folder)
    try:
        made.enrol(NAME)
        brought(made, ONE)
        yield made
    finally:
        made.close()


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[Fleet]:
    shutil.copyfile(sqlite_template, tmp_path / "fleet.db")
    yield from at_work(f"sqlite:///{tmp_path / 'fleet.db'}", tmp_path)


@pytest.fixture
def either_fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """The same on either kind of database, for what is asked of it."""
    yield from at_work(database_url, tmp_path)


def brought(fleet: Fleet, package: SignedPackage, **settings: object) -> None:
    """Publish a package and bring it to the devices."""
    rollout = fleet.roll_out(fleet.publish(package), stages=[{"percent": 100}], **settings)
    assert fleet.run(rollout)["state"] == "succeeded"


def offered(
    fleet: Fleet, blob: str = TO_TWO, *packages: str, device: str = NAME
) -> DeltaSource | float | None:
    return fleet.controller.deltas.offer(device, blob, packages or (ONE.digest,))


def made(fleet: Fleet, blob: str = TO_TWO, *packages: str, device: str = NAME) -> DeltaSource:
    """Wait for a delta as a device does: by asking again."""

    def asked() -> DeltaSource | None:
        found = offered(fleet, blob, *packages, device=device)
        assert found is not None, "there is no delta, and none is made"
        return found if isinstance(found, DeltaSource) else None

    return until(asked, "a delta")


def gone(fleet: Fleet, blob: str, *packages: str) -> None:
    """Wait until the controller knows that it has no delta to a file."""
    until(lambda: offered(fleet, blob, *packages) is None, "the word that there is no delta")


def rows(fleet: Fleet) -> dict[tuple[str, str], DeltaRow]:
    database = Database(fleet.config.database_url)
    try:
        with database.reading() as session:
            return {(row.base, row.target): row for row in session.query(DeltaRow)}
    finally:
        database.close()


def states(fleet: Fleet) -> dict[tuple[str, str], str]:
    return {pair: row.state for pair, row in rows(fleet).items()}


def kept_files(fleet: Fleet) -> set[str]:
    folder = Path(fleet.config.blobs_dir) / DELTAS_FOLDER
    return {path.name for path in folder.glob("??/*")}


def readable(fleet: Fleet, sha256: str, device: str = NAME) -> int | None:
    database = Database(fleet.config.database_url)
    try:
        with database.reading() as session:
            return releases.readable_blobs(session, [(device, sha256)]).get((device, sha256))
    finally:
        database.close()


def content(fleet: Fleet, delta: DeltaSource) -> bytes:
    return fleet.controller.deltas.readable.read(delta.sha256, length=delta.size_bytes + 1)


def encoders() -> list[psutil.Process]:
    """Return the processes of this one that make deltas."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "controller.delivery.encoder" in child.cmdline():
                found.append(child)
    return found


def test_a_delta_leads_from_what_the_device_has_to_what_it_lacks(either_fleet: Fleet) -> None:
    fleet = either_fleet
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    assert delta.base == sha256_hex(trained())
    assert layout.pays(delta.size_bytes, len(trained(1)))
    whole = content(fleet, delta)
    assert applied(trained(), whole) == trained(1)
    assert (sha256_hex(whole), len(whole)) == (delta.sha256, delta.size_bytes)
    parts = range(0, len(whole), delta.chunk_bytes)
    assert delta.chunks == tuple(sha256_hex(whole[p : p + delta.chunk_bytes]) for p in parts)
    assert readable(fleet, delta.sha256) == delta.size_bytes


def test_a_device_fetches_it_like_any_blob(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    came: dict[int, Chunk] = {}

    def take(received: Received) -> None:
        chunk = decode_message(received.payload, Chunk, packed=True)
        came[chunk.index] = chunk

    fleet.hub.on(topics.down(NAME, "chunk"), take)
    fleet.controller.delivery.start()
    request = ChunkRequest(
        device=NAME,
        sha256=delta.sha256,
        chunk_bytes=delta.chunk_bytes,
        indices=tuple(range(len(delta.chunks))),
    )
    fleet.hub.deliver(Received(topics.up(NAME, "chunk_request"), to_json(request)))
    until(lambda: len(came) == len(delta.chunks), "all chunks")
    assert not any(chunk.missing for chunk in came.values())
    whole = b"".join(bytes(came[index].data) for index in sorted(came))
    assert applied(trained(), whole) == trained(1)


def test_each_of_several_models_gets_its_own_delta(either_fleet: Fleet) -> None:
    fleet = either_fleet
    faces = [
        package(number, [(variant("best"), trained(seed))], name="faces")
        for number, seed in (("1", 7), ("2", 8))
    ]
    brought(fleet, faces[0])
    brought(fleet, TWO)
    brought(fleet, faces[1])
    fleet.controller.deltas.start()
    to_faces = sha256_hex(trained(8))
    assert made(fleet).base == sha256_hex(trained())
    assert made(fleet, to_faces, faces[0].digest).base == sha256_hex(trained(7))
    assert made(fleet).base == sha256_hex(trained()), "asked for by turns"
    assert offered(fleet, sha256_hex(b"nobody's")) is None


def test_it_is_made_before_the_first_device_asks(either_fleet: Fleet) -> None:
    fleet = either_fleet
    fleet.roll_out(fleet.publish(TWO), stages=[{"percent": 100}])
    fleet.controller.deltas.tick()
    fleet.controller.deltas.start()
    until(lambda: DeltaState.READY in states(fleet).values(), "a delta that nobody asked for")
    fleet.step()
    assert isinstance(offered(fleet), DeltaSource)


def test_until_it_is_there_the_device_is_told_when_to_ask_again(fleet: Fleet) -> None:
    brought(fleet, TWO)
    wait_s = offered(fleet)
    assert isinstance(wait_s, float)
    assert 1 <= wait_s <= 60


def test_many_that_ask_for_one_pair_cost_one_process(fleet: Fleet) -> None:
    slow, slower = noise(SLOW_KIB), noise(SLOW_KIB)[:-1] + b"x" * 70_000
    fleet.enrol("cam-001")
    brought(fleet, version("3", best=slow))
    brought(fleet, version("4", best=slower))
    fleet.controller.deltas.start()
    target, had = sha256_hex(slower), version("3", best=slow).digest
    for device in (NAME, "cam-001") * 20:
        found = offered(fleet, target, had, device=device)
        assert found is not None
        assert len(encoders()) <= 1
    first = made(fleet, target, had)
    assert made(fleet, target, had, device="cam-001") == first
    assert len([pair for pair in rows(fleet) if pair[1] == target]) == 1
    assert first.size_bytes < len(slower) / 2


def test_what_does_not_pay_is_remembered(fleet: Fleet) -> None:
    target = sha256_hex(noise())
    brought(fleet, version("2", best=noise()))
    fleet.controller.deltas.start()
    gone(fleet, target)
    known = states(fleet)
    assert known == {
        (sha256_hex(trained()), target): DeltaState.NONE,
        (EMPTY, target): DeltaState.NONE,
    }
    before = rows(fleet)
    fleet.kill()
    fleet.controller.tick()
    fleet.controller.deltas.start()
    assert offered(fleet, target) is None
    fleet.clock.advance(10 * FAILED_S)
    assert offered(fleet, target) is None
    assert {p: r.made_at_s for p, r in rows(fleet).items()} == {
        p: r.made_at_s for p, r in before.items()
    }


def test_a_first_install_gets_its_file_compressed_where_that_pays(fleet: Fleet) -> None:
    sparse = b"weight 0.0\n" * 50_000
    fleet.enrol("new-000")
    brought(fleet, version("2", best=sparse))
    fleet.controller.deltas.start()
    delta = made(fleet, sha256_hex(sparse), "f" * 64, device="new-000")
    assert delta.base == EMPTY
    assert applied(b"", content(fleet, delta)) == sparse


def test_that_a_file_is_compressed_already_keeps_no_delta_from_being_made(fleet: Fleet) -> None:
    lines = [b"weight %d\n" % (number * 7919 % 1_000_003) for number in range(30_000)]
    old, new = b"".join(lines), b"".join([*lines, b"one more\n"])
    brought(fleet, version("2", best=old))
    fleet.enrol("new-000")
    fleet.controller.deltas.start()
    brought(fleet, version("3", best=new))
    target = sha256_hex(new)
    compressed = made(fleet, target, "f" * 64, device="new-000")
    delta = made(fleet, target, version("2", best=old).digest)
    assert (compressed.base, delta.base) == (EMPTY, sha256_hex(old))
    assert delta.size_bytes < compressed.size_bytes


def test_to_a_small_file_none_is_made(fleet: Fleet) -> None:
    small = b"small" * 1000
    brought(fleet, version("2", best=small))
    fleet.controller.deltas.start()
    assert offered(fleet, sha256_hex(small)) is None
    assert rows(fleet) == {}


def test_a_variant_of_another_name_is_begun_from_too(fleet: Fleet) -> None:
    brought(fleet, version("2", other=trained(1)))
    fleet.controller.deltas.start()
    assert made(fleet).base == sha256_hex(trained())


def test_an_encoder_that_is_killed_costs_this_delta_for_a_while(fleet: Fleet) -> None:
    slow, slower = noise(SLOW_KIB), noise(SLOW_KIB)[::-1]
    brought(fleet, version("3", best=slow))
    brought(fleet, version("4", best=slower))
    fleet.controller.deltas.start()
    had = version("3", best=slow).digest
    assert isinstance(offered(fleet, sha256_hex(slower), had), float)
    until(encoders, "the process")[0].kill()
    pair = (sha256_hex(slow), sha256_hex(slower))
    until(lambda: states(fleet).get(pair) == DeltaState.FAILED, "the failure")
    assert not list((Path(fleet.config.blobs_dir) / DELTAS_FOLDER / "making").glob("*"))
    brought(fleet, TWO)
    had_then = version("4", best=slower).digest
    assert isinstance(made(fleet, TO_TWO, had_then, ONE.digest), DeltaSource), "others go on"


def test_a_file_that_is_gone_fails_its_delta_which_is_tried_again_later(fleet: Fleet) -> None:
    brought(fleet, TWO)
    base = BlobStore(Path(fleet.config.blobs_dir)).path(sha256_hex(trained()))
    base.unlink()
    fleet.controller.deltas.start()
    pair = (sha256_hex(trained()), TO_TWO)
    assert isinstance(offered(fleet), float)
    until(lambda: states(fleet).get(pair) == DeltaState.FAILED, "the failure")
    gone(fleet, TO_TWO)
    base.write_bytes(trained())
    assert offered(fleet) is None
    fleet.clock.advance(FAILED_S)
    assert made(fleet).base == sha256_hex(trained())


def test_of_a_controller_that_was_killed_meanwhile_it_is_not_tried_at_once(
    either_fleet: Fleet,
) -> None:
    fleet = either_fleet
    brought(fleet, TWO)
    pair = (sha256_hex(trained()), TO_TWO)
    database = Database(fleet.config.database_url)
    with database.transaction() as session:
        assert deltas.begin(session, pair, full_bytes=1, now_s=fleet.clock.now_s())
    database.close()
    left = Path(fleet.config.blobs_dir) / DELTAS_FOLDER / "making" / "delta"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half of it")
    fleet.kill()
    assert offered(fleet) is None, "before it has tidied up"
    fleet.controller.tick()
    assert states(fleet)[pair] == DeltaState.FAILED
    assert not left.exists()
    fleet.controller.deltas.start()
    gone(fleet, TO_TWO)
    fleet.clock.advance(FAILED_S)
    made(fleet)


def test_a_controller_that_stops_ends_the_process_and_makes_the_delta_later(fleet: Fleet) -> None:
    slow, slower = noise(SLOW_KIB), noise(SLOW_KIB)[::-1]
    brought(fleet, version("3", best=slow))
    brought(fleet, version("4", best=slower))
    fleet.controller.deltas.start()
    offered(fleet, sha256_hex(slower), version("3", best=slow).digest)
    until(encoders, "the process")
    fleet.kill()
    assert encoders() == []
    assert states(fleet) == {}


def test_a_delta_to_a_revoked_release_goes(either_fleet: Fleet) -> None:
    fleet = either_fleet
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    fleet.api.post("/v1/releases/digits:2/revoke").raise_for_status()
    assert readable(fleet, delta.sha256) is None
    fleet.step(TRIM_EVERY_S)
    assert rows(fleet) == {}
    assert kept_files(fleet) == set()
    assert offered(fleet) is None


def test_one_from_a_revoked_release_stays(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.api.post("/v1/releases/digits:1/revoke").raise_for_status()
    fleet.controller.deltas.start()
    assert made(fleet).base == sha256_hex(trained())


def with_settings(fleet: Fleet, settings: DeltasConfig) -> None:
    """Start the controller again with other settings."""
    fleet.config = msgspec.structs.replace(fleet.config, deltas=settings)
    fleet.kill()
    fleet.controller.tick()
    fleet.controller.deltas.start()


def test_the_delta_that_was_longest_not_used_makes_room(either_fleet: Fleet) -> None:
    fleet = either_fleet
    fleet.controller.deltas.start()
    brought(fleet, TWO)
    first = made(fleet)
    fleet.clock.advance(10_000.0)
    brought(fleet, version("3", best=trained(2)))
    had = (TWO.digest,)
    second = made(fleet, sha256_hex(trained(2)), *had)
    room_bytes = max(first.size_bytes, second.size_bytes)
    with_settings(fleet, DeltasConfig(keep_bytes=room_bytes))
    fleet.step(TRIM_EVERY_S)
    assert kept_files(fleet) == {second.sha256}
    assert [row.sha256 for row in rows(fleet).values()] == [second.sha256]
    assert readable(fleet, second.sha256) == second.size_bytes


def test_a_delta_that_alone_is_over_the_limit_is_not_kept(fleet: Fleet) -> None:
    with_settings(fleet, DeltasConfig(keep_bytes=1000))
    brought(fleet, TWO)
    gone(fleet, TO_TWO)
    assert kept_files(fleet) == set()
    assert set(states(fleet).values()) == {DeltaState.NONE}


def test_without_deltas_none_is_made_and_those_that_there_are_go(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    made(fleet)
    with_settings(fleet, DeltasConfig(enabled=False))
    assert offered(fleet) is None
    fleet.step(TRIM_EVERY_S)
    assert (rows(fleet), kept_files(fleet)) == ({}, set())


def test_a_restored_controller_makes_its_deltas_again(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    store = BlobStore(Path(fleet.config.blobs_dir) / DELTAS_FOLDER)
    store.remove(delta.sha256)
    stray = store.put(b"of a delta that the database does not know")
    fleet.kill()
    fleet.controller.tick()
    assert stray not in kept_files(fleet)
    fleet.controller.deltas.start()
    assert made(fleet) == delta


def test_a_backup_holds_no_deltas(tmp_path: Path) -> None:
    home = tmp_path / "home"
    create_home(home, HomeOptions())
    migrate(f"sqlite:///{home}/controller.db")
    BlobStore(home / "blobs" / DELTAS_FOLDER).put(b"a delta")
    blob = BlobStore(home / "blobs").put(b"a blob")
    back_up(home, tmp_path / "fleet.tar", FakeClock())
    restore(tmp_path / "fleet.tar", tmp_path / "again", FakeClock())
    assert BlobStore(tmp_path / "again" / "blobs").names() == [blob]
    assert not (tmp_path / "again" / "blobs" / DELTAS_FOLDER).exists()


def test_nothing_is_offered_from_a_release_that_the_device_was_never_given(
    either_fleet: Fleet,
) -> None:
    """With a delta and its target one could work out what another device runs."""
    fleet = either_fleet
    secret = version("9", best=trained(3))
    fleet.publish(secret)
    fleet.devices[NAME].active = secret.digest
    fleet.devices[NAME].connect()  # it says that it runs it
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    gone(fleet, TO_TWO, secret.digest)
    assert all(base == EMPTY for base, to in states(fleet) if to == TO_TWO)


@pytest.mark.parametrize(
    "packages",
    [("f" * 64,), ("",), ("not a digest\0",), ("A" * 64,), tuple(f"{n:064x}" for n in range(9999))],
)
def test_packages_that_nobody_published_count_for_nothing(
    fleet: Fleet, packages: tuple[str, ...]
) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    gone(fleet, TO_TWO, *packages)
    assert {base for base, _ in states(fleet)} <= {EMPTY, sha256_hex(trained())}


def test_who_may_not_read_a_file_is_offered_no_way_to_it(either_fleet: Fleet) -> None:
    fleet = either_fleet
    fleet.enrol("cam-001", ring="two")
    for release in ("digits:1", fleet.publish(TWO)):
        only = {"selector": "ring=two", "stages": [{"percent": 100}]}
        assert fleet.run(fleet.roll_out(release, **only))["state"] == "succeeded"
    for device in (NAME, "nobody", ""):
        for blob in (TO_TWO, "f" * 64, "", "\0"):
            assert offered(fleet, blob, device=device) is None
    assert offered(fleet, "f" * 64, device="cam-001") is None
    fleet.controller.deltas.start()
    delta = made(fleet, device="cam-001")
    assert readable(fleet, delta.sha256, "cam-001") == delta.size_bytes
    assert readable(fleet, delta.sha256, NAME) is None
    fleet.api.patch("/v1/devices/cam-001", json={"state": "quarantined"}).raise_for_status()
    assert readable(fleet, delta.sha256, "cam-001") is None


def test_asking_in_a_loop_costs_nothing_more(fleet: Fleet) -> None:
    brought(fleet, TWO)
    for _ in range(200):
        assert isinstance(offered(fleet), float)
    fleet.controller.deltas.start()
    made(fleet)
    for _ in range(200):
        assert isinstance(offered(fleet), DeltaSource)
    assert len(rows(fleet)) == 1


def test_the_command_line_shows_them(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    shown = fleet.api.get("/v1/releases/digits:2").raise_for_status().content
    show_release(from_json(shown, Release))
    share = f"{100 * delta.size_bytes / len(trained(1)):.1f} %"
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("digits:1 ")]
    assert line.split()[-2:] == share.split()


def test_a_release_shows_its_deltas(either_fleet: Fleet) -> None:
    fleet = either_fleet
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    shown = fleet.api.get("/v1/releases/digits:2").raise_for_status().json()
    assert shown["deltas"] == [
        {
            "base": delta.base,
            "base_release": "digits:1",
            "size_bytes": delta.size_bytes,
            "full_bytes": len(trained(1)),
        }
    ]
    assert fleet.api.get("/v1/releases/digits:1").raise_for_status().json()["deltas"] == []


def test_a_new_order_counts_at_once(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    made(fleet)
    three = trained(2)
    rollout = fleet.roll_out(
        fleet.publish(version("3", best=three)), stages=[{"percent": 100}], soak_s=600
    )
    fleet.step(0.1)
    assert fleet.state(rollout) == "running"
    assert offered(fleet, sha256_hex(three), TWO.digest) is not None


def test_a_delta_whose_file_is_gone_is_made_again(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    delta = made(fleet)
    store = fleet.controller.deltas.readable.store_of(delta.sha256)
    store.path(delta.sha256).unlink()
    assert isinstance(offered(fleet), float), "it is not offered, but made"
    assert made(fleet) == delta
    assert store.size_bytes(delta.sha256) == delta.size_bytes


def test_a_second_controller_with_these_blobs_leaves_the_deltas_alone(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    made(fleet)
    before = kept_files(fleet)
    url = f"sqlite:///{tmp_path / 'other.db'}"
    migrate(url)
    database, folder = Database(url), Path(fleet.config.blobs_dir)
    second = Deltas(database, BlobStore(folder), folder, DeltasConfig(), fleet.clock)
    second.start()
    for _ in range(3):
        second.tick()
    assert before
    assert kept_files(fleet) == before
    assert caplog.text.count("another controller uses") == 1
    fleet.controller.stop()
    second.tick()
    assert kept_files(fleet) == set(), "it has the folder for itself, and knows of no delta there"
    second.stop(10)
    database.close()


def test_the_next_device_of_a_name_is_given_nothing_of_the_last_one(fleet: Fleet) -> None:
    brought(fleet, TWO)
    fleet.controller.deltas.start()
    assert made(fleet).base == sha256_hex(trained())
    path = f"/v1/devices/{NAME}"
    fleet.api.patch(path, json={"state": "decommissioned"}).raise_for_status()
    fleet.api.patch(path, json={"may_enrol_again": True}).raise_for_status()
    token = fleet.api.post("/v1/tokens", json={"uses": 1}).json()["token"]
    device = fleet.devices[NAME]
    device.key, device.boot_id, device.active, device.revision = SigningKey(b"x" * 32), "b", None, 0
    assert device.ask_to_enrol(token).accepted
    assert not isinstance(offered(fleet), DeltaSource), "what was read a moment ago counts no more"
    device.connect()
    fleet.run(fleet.roll_out(TWO.digest, stages=[{"percent": 100}]))
    fleet.clock.advance(KNOWN_S)
    gone(fleet, TO_TWO)


def test_with_more_room_a_delta_is_made_that_was_too_large_to_keep(fleet: Fleet) -> None:
    with_settings(fleet, DeltasConfig(keep_bytes=10))
    brought(fleet, TWO)
    gone(fleet, TO_TWO)
    fleet.clock.advance(10 * FAILED_S)
    assert offered(fleet) is None
    with_settings(fleet, DeltasConfig())
    made(fleet)


def test_one_device_of_a_kind_does_not_decide_what_is_made_ahead(either_fleet: Fleet) -> None:
    fleet = either_fleet
    fleet.enrol("aaa")
    other = fleet.devices["aaa"]
    other.active, other.runtimes = ONE.digest, ()
    other.connect()
    fleet.roll_out(fleet.publish(TWO), stages=[{"percent": 100}], unfit="allow")
    fleet.controller.deltas.tick()
    fleet.controller.deltas.start()
    until(lambda: DeltaState.READY in states(fleet).values(), "a delta that nobody asked for")
