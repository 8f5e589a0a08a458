"""A restore into a place where something is, and one that fails late."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.app.backup import back_up
from controller.app.restore import restore
from controller.broker.errors import HomeError
from controller.config import load_config
from controller.errors import ConflictError
from tests.simulators.stack import fleet_here
from tests.simulators.stored_fleet import CLOCK, content, run


@pytest.fixture
def log_of_a_killed_controller(home: Path, tmp_path: Path) -> bytes:
    """What SQLite keeps beside a database whose controller was killed."""
    other = tmp_path / "killed.db"
    other.write_bytes((home / "controller.db").read_bytes())
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE device SET last_error = 'from the log'")
        connection.commit()
        return other.with_name("killed.db-wal").read_bytes()


def test_the_log_of_a_database_that_was_removed_is_not_played_into_the_restored_one(
    backup: Path, log_of_a_killed_controller: bytes, tmp_path: Path
) -> None:
    database = tmp_path / "fleet.db"
    log = database.with_name("fleet.db-wal")
    log.write_bytes(log_of_a_killed_controller)
    url = f"sqlite:///{database}"
    with pytest.raises(ConflictError, match=r"fleet\.db-wal is there already") as caught:
        restore(backup, tmp_path / "again", CLOCK, database_url=url)
    assert "move it away" in caught.value.remedy
    assert not (tmp_path / "again").exists()
    assert log.read_bytes() == log_of_a_killed_controller
    log.unlink()
    restore(backup, tmp_path / "again", CLOCK, database_url=url)
    assert "from the log" not in str(content(url)["device"])


@pytest.mark.parametrize("suffix", ["-shm", "-journal"])
def test_a_file_that_sqlite_would_use_is_in_the_way(
    backup: Path, tmp_path: Path, suffix: str
) -> None:
    (tmp_path / f"fleet.db{suffix}").touch()
    with pytest.raises(ConflictError, match=f"fleet.db{suffix}"):
        restore(
            backup, tmp_path / "again", CLOCK, database_url=f"sqlite:///{tmp_path / 'fleet.db'}"
        )
    assert not (tmp_path / "fleet.db").exists()


def test_a_restore_that_fails_at_its_end_leaves_the_database_empty(
    home: Path, backup: Path, empty_database_url: str, tmp_path: Path
) -> None:
    again, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    elsewhere.mkdir()
    again.symlink_to(elsewhere)  # a directory cannot take the place of a link
    with pytest.raises(HomeError, match="not a directory"):
        restore(backup, again, CLOCK, database_url=empty_database_url)
    assert not list(tmp_path.glob("fleet.db*"))
    again.unlink()
    restore(backup, again, CLOCK, database_url=empty_database_url)
    assert len(content(empty_database_url)["device"]) == 1


@pytest.mark.parametrize("quote", ['"', "'"])
def test_only_a_path_that_begins_in_the_old_directory_leads_to_the_new_one(
    home: Path, tmp_path: Path, quote: str
) -> None:
    foreign = Path(f"{tmp_path}/mnt{home}/blobs")  # holds the old path, but does not begin with it
    foreign.mkdir(parents=True)
    settings = (home / "controller.toml").read_text()
    settings = settings.replace('"blobs"', f"{quote}{foreign}{quote}")
    settings = settings.replace('"trust.json"', f"{quote}{home}/trust.json{quote}")
    settings = settings.replace("[api]", f"data_dir = {quote}{home}{quote}\n[api]", 1)
    (home / "controller.toml").write_text(settings)
    back_up(home, tmp_path / "fleet.tar", CLOCK)
    again = tmp_path / "again"
    assert restore(tmp_path / "fleet.tar", again, CLOCK).outside == (str(foreign),)
    config = load_config(again / "controller.toml")
    assert config.blobs_dir == str(foreign)
    assert (config.data_dir, config.trust_file) == (str(again), str(again / "trust.json"))


def test_certificates_and_keys_outside_are_named(home: Path, tmp_path: Path) -> None:
    api = {name: tmp_path / f"api-{name}" for name in ("cert_file", "key_file", "ca_file")}
    broker = {
        name: tmp_path / f"broker-{name}"
        for name in ("cert_file", "key_file", "server_cert_file", "server_key_file")
    }
    settings = (home / "controller.toml").read_text()
    for table, files in (("api", api), ("broker", broker)):
        lines = "".join(f'{name} = "{path}"\n' for name, path in files.items())
        settings = settings.replace(f"[{table}]\n", f"[{table}]\n{lines}")
    (home / "controller.toml").write_text(settings)
    made = back_up(home, tmp_path / "fleet.tar", CLOCK)
    assert made.outside == tuple(sorted(str(path) for path in [*api.values(), *broker.values()]))


def test_a_restore_says_that_devices_that_were_shut_out_since_are_in_again(
    home: Path, backup: Path, tmp_path: Path
) -> None:
    run(f"sqlite:///{home / 'controller.db'}", "UPDATE device SET state = 'decommissioned'")
    done = fleet_here("controller", "restore", str(backup), str(tmp_path / "again"))
    assert done.code == 0
    rows = content(f"sqlite:///{tmp_path / 'again' / 'controller.db'}")["device"]
    assert "enrolled" in rows[0]
    (line,) = [line for line in done.err.splitlines() if "are in the fleet again" in line]
    assert "devices that were quarantined or decommissioned since then" in line
    assert "fleet device quarantine" in line
