"""The file of a database: private from its first moment, and the one that its URL names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from controller.app.new_home import HomeOptions, create_home
from controller.config import load_config
from controller.errors import SettingsError
from controller.store.database import migrate
from tests.simulators.stored_fleet import OLD_FLEET, run


def test_a_new_database_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        create_home(tmp_path / "home", HomeOptions())
        url = load_config(tmp_path / "home" / "controller.toml").database_url
        migrate(url, "0002")
        run(url, OLD_FLEET)
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in (tmp_path / "home").glob("controller.db*")
        }
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert "controller.db" in modes


@pytest.mark.parametrize("url", ["sqlite:///c.db?uri=true", "sqlite:///c.db?none=1"])
def test_options_of_sqlite_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match="gives SQLite options; leave out what follows"):
        create_home(tmp_path / "home", HomeOptions(database_url=url))


def test_a_path_is_followed_as_the_system_follows_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    create_home(tmp_path / "home", HomeOptions(database_url="sqlite:///../link/../c.db"))
    config = load_config(tmp_path / "home" / "controller.toml")
    assert config.database_url == f"sqlite:///{tmp_path}/a/c.db"
    migrate(config.database_url)
    assert (tmp_path / "a" / "c.db").is_file()
