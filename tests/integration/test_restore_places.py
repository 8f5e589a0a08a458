"""Where a restore puts the database, and what killed commands leave beside its place."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controller.app.backup import back_up
from controller.app.new_home import create_home
from controller.app.restore import restore
from controller.broker.errors import HomeError
from controller.config import load_config
from controller.database_url import sqlite_path
from controller.errors import SettingsError
from tests.simulators.stack import fleet_here
from tests.simulators.stored_fleet import CLOCK, content, stored_home

HOLDER = """
import sys
from pathlib import Path
from controller.app.unfinished import unfinished
with unfinished(Path(sys.argv[1])) as scratch:
    (scratch / "home" / "keys").mkdir(parents=True)
    (scratch / "home" / "keys" / "director.key").write_bytes(b"secret")
    print("made", flush=True)
    sys.stdin.read()
"""


def database_of(home: Path) -> Path:
    path = sqlite_path(load_config(home / "controller.toml").database_url)
    assert path is not None
    return path


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("sqlite:///../c2.db", "new/c2.db"),
        ("sqlite:///data/sub/c2.db", "new/home/data/sub/c2.db"),
        ("sqlite:///data/../c2.db", "new/home/c2.db"),
        ("sqlite:///../home/c2.db", "new/home/c2.db"),
        ("sqlite:////{base}/new/home/c2.db", "new/home/c2.db"),
        ("sqlite:////{base}/c2.db", "c2.db"),
    ],
)
def test_the_database_is_where_the_new_settings_say(
    home: Path, backup: Path, tmp_path: Path, url: str, place: str
) -> None:
    again = tmp_path / "new" / "home"
    again.mkdir(parents=True)
    url = url.format(base=str(tmp_path).lstrip("/"))
    done = fleet_here("controller", "restore", str(backup), str(again), "--database", url)
    assert done.code == 0, done.err
    database = database_of(again)
    assert database.resolve() == tmp_path / place
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    before = content(f"sqlite:///{home / 'controller.db'}")
    assert (
        content(load_config(again / "controller.toml").database_url)["release"]
        == (before["release"])
    )
    assert not list(again.parent.glob(".*"))


def test_a_database_beside_the_directory_is_not_lost(tmp_path: Path) -> None:
    url = "sqlite:///../controller.db"
    stored_home(tmp_path / "home", url)
    assert (tmp_path / "controller.db").is_file()
    back_up(tmp_path / "home", tmp_path / "fleet.tar", CLOCK)
    again = tmp_path / "new" / "home"
    with pytest.raises(HomeError, match=f"the database {tmp_path}/new/controller.db, outside"):
        restore(tmp_path / "fleet.tar", again, CLOCK)
    assert not list((tmp_path / "new").iterdir())
    restore(tmp_path / "fleet.tar", again, CLOCK, database_url=url)
    assert len(content(f"sqlite:///{tmp_path}/new/controller.db")["device"]) == 1


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("sqlite:///../none/c.db", HomeError, "there is no directory {base}/none for the database"),
        ("sqlite:///../.again.unfinished/c.db", HomeError, "there is no directory"),
        ("sqlite:///:memory:", SettingsError, "neither an SQLite file nor PostgreSQL"),
        ("sqlite:///file:c.db?uri=true", SettingsError, "gives SQLite options"),
    ],
)
def test_a_database_that_would_be_lost_is_refused(
    backup: Path, tmp_path: Path, url: str, error: type[Exception], said: str
) -> None:
    before = set(tmp_path.rglob("*"))
    with pytest.raises(error) as caught:
        restore(backup, tmp_path / "again", CLOCK, database_url=url)
    assert said.format(base=tmp_path) in str(caught.value)
    assert set(tmp_path.rglob("*")) == before


def test_a_place_in_the_directory_can_be_named_in_many_ways(home: Path, tmp_path: Path) -> None:
    settings = (home / "controller.toml").read_text()
    settings = settings.replace("sqlite:///", "sqlite:///keys/../")
    settings = settings.replace('"blobs"', '"keys/../blobs"')
    settings = settings.replace('"trust.json"', '"../trust.json"')
    (home / "controller.toml").write_text(settings)
    (home / "trust.json").rename(tmp_path / "trust.json")
    made = back_up(home, tmp_path / "fleet.tar", CLOCK, with_blobs=False)
    assert made.outside == (f"{home}/../trust.json",)
    again = tmp_path / "again"
    restored = restore(tmp_path / "fleet.tar", again, CLOCK)
    assert restored.outside == (f"{again}/../trust.json",)
    assert not list((again / "blobs").iterdir())
    assert database_of(again).resolve() == again / "controller.db"


@pytest.mark.parametrize("way", ["{home}/../home/b.tar", "{base}/link/b.tar", "{home}/keys/b.tar"])
def test_no_backup_is_made_in_the_directory_itself(home: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "link").symlink_to(home)
    before = set(home.rglob("*"))
    with pytest.raises(HomeError, match="is in the directory itself"):
        back_up(home, Path(way.format(home=home, base=tmp_path)), CLOCK)
    assert set(home.rglob("*")) == before


def test_a_backup_replaces_no_link(home: Path, tmp_path: Path) -> None:
    (tmp_path / "b.tar").symlink_to(tmp_path / "none")
    with pytest.raises(HomeError, match="is there already"):
        back_up(home, tmp_path / "b.tar", CLOCK)


def test_what_a_killed_command_left_is_removed_by_the_next_one(
    home: Path, backup: Path, tmp_path: Path
) -> None:
    again, third, copy = tmp_path / "again", tmp_path / "third", tmp_path / "copy.tar"
    for place in (again, third, copy):
        holder = subprocess.Popen(
            [sys.executable, "-P", "-c", HOLDER, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        with holder, pytest.raises(HomeError, match="another command is making"):
            assert holder.stdout.readline() == b"made\n"
            try:
                restore(backup, place, CLOCK)
            finally:
                holder.kill()
    left = [tmp_path / f".{place.name}.unfinished" for place in (again, third, copy)]
    assert all((path / "home/keys/director.key").is_file() for path in left)
    restore(backup, again, CLOCK)
    create_home(third)
    back_up(home, copy, CLOCK)
    assert not list(tmp_path.glob(".*"))
    assert (again / "controller.db").is_file()


def test_what_is_not_ours_stays(backup: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    (tmp_path / ".again.unfinished").symlink_to(other)
    with pytest.raises(HomeError, match=r"\.again\.unfinished is in the way; remove it"):
        restore(backup, tmp_path / "again", CLOCK)
    assert (other / "file").exists()


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a?b"])
def test_a_path_that_no_line_can_show_is_refused(backup: Path, tmp_path: Path, name: str) -> None:
    before = set(tmp_path.iterdir())
    for arguments in (
        ("init", str(tmp_path / name)),
        ("init", str(tmp_path / "fine"), "--offline-keys", str(tmp_path / name)),
        ("controller", "restore", str(backup), str(tmp_path / name)),
        ("controller", "backup", str(tmp_path / "home"), str(tmp_path / name)),
    ):
        done = fleet_here(*arguments)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert "a control character or a question mark" in done.err
    assert set(tmp_path.iterdir()) == before
