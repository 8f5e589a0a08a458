"""The backup of a controller: whole, private and checked, from either database into either."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.app.backup import DATABASE_NAME, INDEX_NAME, BackupIndex, back_up
from controller.app.new_home import create_home
from controller.app.restore import restore
from controller.broker.errors import HomeError
from controller.config import load_config
from controller.database_url import sqlite_path
from controller.errors import ConflictError, DatabaseError
from controller.services.blobs import BlobStore
from controller.store.database import Database, migrate
from controller.store.restored import RAISE_BY
from controller.store.tables import Base
from tests.integration.conftest import PostgresServer
from tests.simulators.stored_fleet import CLOCK, OLD_FLEET, content, run, stored_home
from wire.codec import from_json, to_json

Member = tuple[tarfile.TarInfo, bytes]


def test_a_restored_directory_holds_what_was_backed_up(
    empty_database_url: str, target_database_url: str, tmp_path: Path
) -> None:
    home, again = tmp_path / "home", tmp_path / "again"
    before = content(stored_home(home, empty_database_url))
    made = back_up(home, tmp_path / "fleet.tar", CLOCK)
    assert made.outside == ()
    restored = restore(tmp_path / "fleet.tar", again, CLOCK, database_url=target_database_url)
    assert (restored.home, restored.has_blobs, restored.outside) == (str(home), True, ())
    after = content(load_config(again / "controller.toml").database_url)
    led = {"desired_state", "desired_model", "deployment", "device"}
    assert {k: v for k, v in after.items() if k not in led} == {
        k: v for k, v in before.items() if k not in led
    }
    for name in ("keys/director.key", "broker/dynamic-security.json", "api.token", "trust.json"):
        assert (again / name).read_bytes() == (home / name).read_bytes()
    digest = hashlib.sha256(b"a blob").hexdigest()
    assert BlobStore(again / "blobs").read(digest, length=99) == b"a blob"
    for path in (again, *again.rglob("*")):
        is_public = path in {again / name for name in ("ca.pem", "root.json", "trust.json")}
        wanted = 0o700 if path.is_dir() else 0o644 if is_public else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert not list(tmp_path.glob(".*")), "nothing is left over"


def test_what_is_counted_goes_on_after_a_restore(
    target_database_url: str, home: Path, backup: Path, tmp_path: Path
) -> None:
    restore(backup, tmp_path / "again", CLOCK, database_url=target_database_url)
    url = load_config(tmp_path / "again" / "controller.toml").database_url
    run(url, "INSERT INTO rollout_event (rollout, at_s, action, reason) VALUES ('r1', 2, 'x', '')")
    numbers = [row[0] for row in content(url)["rollout_event"]]
    assert numbers == [12, 13]


def test_a_backup_of_an_earlier_version_is_brought_to_today(
    target_database_url: str, tmp_path: Path
) -> None:
    create_home(tmp_path / "home")
    url = load_config(tmp_path / "home" / "controller.toml").database_url
    migrate(url, "0002")
    run(url, OLD_FLEET)
    back_up(tmp_path / "home", tmp_path / "fleet.tar", CLOCK)
    again = tmp_path / "again"
    restore(tmp_path / "fleet.tar", again, CLOCK, database_url=target_database_url)
    rows = content(load_config(again / "controller.toml").database_url)
    assert rows["desired_state"][0][:2] == ("cam-1", 7 + RAISE_BY)
    assert rows["desired_model"][0][:5] == ("cam-1", "digits", "d", "r1", 7 + RAISE_BY)
    assert 7 + RAISE_BY in rows["deployment"][0]


def test_the_backup_is_one_private_file(backup: Path) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with tarfile.open(backup) as archive:
        names = archive.getnames()
    assert names[:2] == [INDEX_NAME, DATABASE_NAME]
    assert "home/keys/director.key" in names
    assert not any("controller.db" in name for name in names)


def test_blobs_can_be_left_out(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "fleet.tar", CLOCK, with_blobs=False)
    assert not restore(tmp_path / "fleet.tar", tmp_path / "again", CLOCK).has_blobs
    assert not list((tmp_path / "again" / "blobs").rglob("*"))


def test_what_lies_outside_is_named(home: Path, tmp_path: Path) -> None:
    key = tmp_path / "director.key"
    (home / "keys/director.key").rename(key)
    settings = (home / "controller.toml").read_text()
    (home / "controller.toml").write_text(settings.replace("keys/director.key", str(key)))
    made = back_up(home, tmp_path / "fleet.tar", CLOCK)
    assert made.outside == (str(key),)
    assert restore(tmp_path / "fleet.tar", tmp_path / "again", CLOCK).outside == (str(key),)


def test_a_backup_shows_one_moment_of_a_database_that_is_written(
    empty_database_url: str, tmp_path: Path
) -> None:
    url = stored_home(tmp_path / "home", empty_database_url)
    stop, begun = threading.Event(), threading.Event()

    def write() -> None:
        database = Database(url)
        number = 0
        while not stop.is_set():
            number += 1
            with database.transaction() as session:
                for table in ("device", "desired_state"):  # always the same in both
                    column = "reported_revision" if table == "device" else "revision"
                    session.execute(sa.text(f"UPDATE {table} SET {column} = {100 + number}"))  # noqa: S608
            begun.set()
        database.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(60)
        for number in range(5):
            copy = tmp_path / f"{number}.tar"
            back_up(tmp_path / "home", copy, CLOCK)
            database = tmp_path / f"{number}.db"
            with tarfile.open(copy) as archive:
                database.write_bytes(archive.extractfile(DATABASE_NAME).read())  # type: ignore[union-attr]  # it is a file
            rows = content(f"sqlite:///{database}")
            device, wanted = rows["device"][0], rows["desired_state"][0]
            columns = [column.name for column in Base.metadata.tables["device"].columns]
            assert device[columns.index("reported_revision")] == wanted[1] not in {0, 7}
    finally:
        stop.set()
        writer.join(60)


def test_a_directory_that_exists_and_a_database_that_is_used_stay(
    empty_database_url: str, home: Path, backup: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    with pytest.raises(HomeError, match="already exists"):
        restore(backup, home, CLOCK)
    assert {path: path.read_bytes() for path in before} == before
    migrate(empty_database_url)
    with pytest.raises(ConflictError):
        restore(backup, tmp_path / "again", CLOCK, database_url=empty_database_url)
    assert not (tmp_path / "again").exists()
    with pytest.raises(HomeError, match="is there already"):
        back_up(home, backup, CLOCK)
    with pytest.raises(HomeError, match=f"^there is no directory {tmp_path / 'none'};"):
        back_up(home, tmp_path / "none" / "fleet.tar", CLOCK)


@pytest.mark.postgresql
def test_a_restore_that_fails_leaves_an_empty_database(
    home: Path, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    own = f"sqlite:///{home / 'controller.db'}"
    other = postgres_server.url(postgres_server.create_database())
    long = "x" * 100  # SQLite does not count characters
    run(own, f"UPDATE device SET agent_version = '{long}'")  # noqa: S608 - a constant
    back_up(home, tmp_path / "long.tar", CLOCK)
    with pytest.raises(DatabaseError, match="cannot be filled"):
        restore(tmp_path / "long.tar", tmp_path / "again", CLOCK, database_url=other)
    assert not (tmp_path / "again").exists()
    run(own, "UPDATE device SET agent_version = '0.2.0'")
    back_up(home, tmp_path / "fleet.tar", CLOCK)
    restore(tmp_path / "fleet.tar", tmp_path / "again", CLOCK, database_url=other)
    assert len(content(other)["device"]) == 1


def test_the_settings_of_an_earlier_version_lead_to_the_new_directory(
    home: Path, tmp_path: Path
) -> None:
    settings = (home / "controller.toml").read_text()
    old = settings.replace("sqlite:///", f"sqlite:///{home}/")
    old = old.replace('"blobs"', f'"{home}/blobs"').replace("[api]", f'data_dir = "{home}"\n[api]')
    (home / "controller.toml").write_text(old)
    back_up(home, tmp_path / "fleet.tar", CLOCK)
    again = tmp_path / "again"
    assert restore(tmp_path / "fleet.tar", again, CLOCK).outside == ()
    config = load_config(again / "controller.toml")
    assert sqlite_path(config.database_url) == again / "controller.db"
    assert (config.data_dir, config.blobs_dir) == (str(again), str(again / "blobs"))


def test_a_database_outside_is_not_taken_for_the_copy(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stored_home(home, f"sqlite:///{tmp_path / 'fleet.db'}")
    back_up(home, tmp_path / "fleet.tar", CLOCK)
    with pytest.raises(HomeError, match="--database") as caught:
        restore(tmp_path / "fleet.tar", tmp_path / "again", CLOCK)
    assert str(tmp_path / "fleet.db") in str(caught.value)
    assert not (tmp_path / "again").exists()


def test_without_a_database_there_is_no_backup(tmp_path: Path) -> None:
    create_home(tmp_path / "home")
    with pytest.raises(DatabaseError, match="start the controller once"):
        back_up(tmp_path / "home", tmp_path / "fleet.tar", CLOCK)
    assert not (tmp_path / "fleet.tar").exists()


def test_a_damaged_database_is_not_backed_up(home: Path, tmp_path: Path) -> None:
    damaged = bytearray((home / "controller.db").read_bytes())
    for page in range(3, len(damaged) // 4096):
        damaged[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    (home / "controller.db").write_bytes(damaged)
    with pytest.raises(DatabaseError):
        back_up(home, tmp_path / "fleet.tar", CLOCK)
    assert not (tmp_path / "fleet.tar").exists()


def edited(backup: Path, edit: Callable[[list[Member]], None]) -> Path:
    """Write a backup again with other members."""
    with tarfile.open(backup) as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]  # all are files
    edit(members)
    changed = backup.with_name("edited.tar")
    with tarfile.open(changed, "w") as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return changed


def place_of(members: list[Member], name: str) -> int:
    return [member.name for member, _ in members].index(name)


def flip(members: list[Member]) -> None:
    place = place_of(members, "home/keys/director.key")
    member, data = members[place]
    members[place] = (member, bytes([data[0] ^ 1]) + data[1:])


def drop(members: list[Member]) -> None:
    del members[place_of(members, "home/trust.json")]


def drop_database(members: list[Member]) -> None:
    del members[place_of(members, DATABASE_NAME)]


def drop_index(members: list[Member]) -> None:
    del members[0]


def add(members: list[Member]) -> None:
    member = tarfile.TarInfo("home/more")
    members.append((member, b""))


def twice(members: list[Member]) -> None:
    members.append(members[place_of(members, "home/trust.json")])


def link(members: list[Member]) -> None:
    place = place_of(members, "home/trust.json")
    member = tarfile.TarInfo("home/trust.json")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members[place] = (member, b"")


def renamed(to: str) -> Callable[[list[Member]], None]:
    """Let the index and the archive agree on a name that leads outside."""

    def edit(members: list[Member]) -> None:
        index = from_json(members[0][1], BackupIndex)
        data = to_json(index).replace(b'"home/trust.json"', b'"' + to.encode() + b'"')
        members[0][0].size = len(data)
        members[0] = (members[0][0], data)
        members[place_of(members, "home/trust.json")][0].name = to

    return edit


def newer(members: list[Member]) -> None:
    data = members[0][1].replace(b'"format_version": 1', b'"format_version": 2')
    assert data != members[0][1]
    members[0] = (members[0][0], data)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (flip, "does not match its digest"),
        (drop, "is missing"),
        (drop_database, "is missing"),
        (drop_index, "is no backup"),
        (add, "is not as the index says"),
        (twice, "is not as the index says"),
        (link, "is not as the index says"),
        (renamed("../trust.json"), "does not belong"),
        (renamed("home/../../trust.json"), "does not belong"),
        (renamed("/tmp/trust.json"), "does not belong"),  # noqa: S108 - never written
        (renamed("home"), "does not belong"),
        (renamed("else/trust.json"), "does not belong"),
        (newer, "or newer"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_backup_that_was_changed_is_refused(
    backup: Path, tmp_path: Path, edit: Callable[[list[Member]], None], said: str
) -> None:
    before = set(tmp_path.rglob("*")) | {backup.with_name("edited.tar")}
    with pytest.raises(HomeError) as caught:
        restore(edited(backup, edit), tmp_path / "again", CLOCK)
    assert said in str(caught.value)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kept", [0, 100, 512, 5000, -1024 * 20])
def test_a_backup_that_was_cut_is_refused(backup: Path, tmp_path: Path, kept: int) -> None:
    (tmp_path / "cut.tar").write_bytes(backup.read_bytes()[:kept])
    with pytest.raises(HomeError):
        restore(tmp_path / "cut.tar", tmp_path / "again", CLOCK)
    assert not (tmp_path / "again").exists()


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="cannot restore"):
        restore(tmp_path / "none.tar", tmp_path / "again", CLOCK)
