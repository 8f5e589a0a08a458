from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from controller.app.home import offline_directory, read_home
from controller.app.new_home import HomeOptions, create_home
from controller.broker.access import CONTROLLER_USER
from controller.broker.errors import HomeError
from controller.config import load_config
from controller.errors import SettingsError
from controller.secret_files import read_api_token, read_director_key, read_trust

OFFLINE = {"release.key", "root.json", "targets.key", "root-1.key", "root-2.key", "root-3.key"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_everything_in_it_is_private_but_what_devices_get(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    create_home(home)
    for top in (home, offline_directory(home)):
        assert mode(top) == 0o700
        for path in top.rglob("*"):
            is_public = path.name in {"ca.pem", "root.json", "trust.json"}
            wanted = 0o700 if path.is_dir() else 0o644 if is_public else 0o600
            assert mode(path) == wanted, path
    assert {path.name for path in home.parent.iterdir()} == {"home", "home-offline"}


def test_the_keys_that_no_server_needs_lie_apart(tmp_path: Path) -> None:
    create_home(tmp_path / "home")
    assert tree(tmp_path / "home-offline") == OFFLINE | {"ca.key"}
    create_home(tmp_path / "other", HomeOptions(offline_keys=tmp_path / "stick" / "fleet"))
    assert tree(tmp_path / "stick" / "fleet") == OFFLINE | {"ca.key"}
    for home in ("home", "other"):
        assert {name for name in tree(tmp_path / home) if name.endswith(".key")} == {
            f"keys/{name}.key" for name in ("devices-ca", "director", "snapshot", "timestamp")
        }


def test_a_home_speaks_tls_unless_asked_not_to(tmp_path: Path) -> None:
    create_home(tmp_path / "home", HomeOptions(broker_names=("broker.example", "192.0.2.7")))
    broker = load_config(tmp_path / "home" / "controller.toml").broker
    assert (broker.host, broker.port, broker.clear_text) == ("0.0.0.0", 8883, False)  # noqa: S104
    assert broker.ca_file == str(tmp_path / "home" / "ca.pem")
    assert broker.names == ("broker.example", "192.0.2.7")
    certificates = load_config(tmp_path / "home" / "controller.toml").device_certificates
    assert certificates is not None
    assert (certificates.port, certificates.accept_passwords) == (8884, False)
    create_home(tmp_path / "clear", HomeOptions(clear_text=True))
    broker = load_config(tmp_path / "clear" / "controller.toml").broker
    assert (broker.host, broker.port, broker.clear_text) == ("127.0.0.1", 1883, True)
    assert broker.ca_file is None
    assert load_config(tmp_path / "clear" / "controller.toml").device_certificates is None
    assert tree(tmp_path / "clear-offline") == OFFLINE


def test_the_controller_accepts_it(tmp_path: Path) -> None:
    create_home(tmp_path / "home", HomeOptions(api_port=7001, broker_host="::1", broker_port=7002))
    config = load_config(tmp_path / "home" / "controller.toml")
    assert (config.api.port, config.broker.host, config.broker.port) == (7001, "::1", 7002)
    assert config.database_url == f"sqlite:///{tmp_path}/home/controller.db"
    assert config.broker.user == CONTROLLER_USER
    assert config.broker.client_id == CONTROLLER_USER
    assert len(read_api_token(config)) >= 32
    trust = read_trust(config, read_director_key(config))
    assert trust.release.keys != trust.director.keys


def test_secrets_differ_from_home_to_home(tmp_path: Path) -> None:
    for name in ("a", "b"):
        create_home(tmp_path / name)
    for name in ("api.token", "broker.password", "keys/director.key", "ca.pem"):
        assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "b" / name).read_bytes()
    for name in sorted(OFFLINE | {"ca.key"}):
        one, other = (tmp_path / f"{home}-offline" / name for home in "ab")
        assert one.read_bytes() != other.read_bytes()


def test_password_is_only_hashed_in_the_accounts(tmp_path: Path) -> None:
    create_home(tmp_path / "home")
    text = (tmp_path / "home" / "broker" / "dynamic-security.json").read_text()
    assert (tmp_path / "home" / "broker.password").read_text().strip() not in text
    assert set(json.loads(text)["defaultACLAccess"].values()) == {False, True}


def test_empty_directory_becomes_a_home(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    create_home(tmp_path / "home")
    assert mode(tmp_path / "home") == 0o700


def test_what_exists_is_never_touched(tmp_path: Path) -> None:
    create_home(tmp_path / "home")
    before = {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}
    with pytest.raises(HomeError, match="already exists"):
        create_home(tmp_path / "home")
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(HomeError, match="home-offline already exists"):
        create_home(tmp_path / "new", HomeOptions(offline_keys=tmp_path / "home-offline"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="already exists"):
        create_home(tmp_path / "file")


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"cannot make .*: (not a directory|file exists)"):
        create_home(tmp_path / "file" / "home")
    with pytest.raises(HomeError, match="cannot make"):
        create_home(Path("/proc/none/home"))


@pytest.mark.parametrize(
    "options",
    [
        HomeOptions(api_port=0),
        HomeOptions(broker_port=70_000),
        HomeOptions(broker_port=0),
        HomeOptions(broker_names=("https://broker.example",)),
        HomeOptions(broker_names=("a.example, DNS:b.example",)),
        HomeOptions(clear_text=True, broker_host="192.0.2.1"),
        HomeOptions(clear_text=True, broker_names=("broker.example",)),
        HomeOptions(api_host=""),
        HomeOptions(broker_host="a b"),
        HomeOptions(broker_host='x"\nport = 1'),
    ],
)
def test_impossible_options(tmp_path: Path, options: HomeOptions) -> None:
    with pytest.raises(HomeError):
        create_home(tmp_path / "home", options)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:7001"),  # noqa: S104 - read back, not bound
        ("::", "http://[::1]:7001"),
        ("fleet.example", "http://fleet.example:7001"),
    ],
)
def test_address_to_connect_to(tmp_path: Path, host: str, url: str) -> None:
    create_home(tmp_path / "home", HomeOptions(api_host=host, api_port=7001))
    assert read_home(tmp_path / "home").api_url == url


def test_database_url_with_quotes(tmp_path: Path) -> None:
    url = 'postgresql+psycopg://u:p"w@host/db'
    create_home(tmp_path / "home", HomeOptions(database_url=url))
    assert load_config(tmp_path / "home" / "controller.toml").database_url == url


@pytest.mark.parametrize("url", ["nosuch://x", "no url", "sqlite://"])
def test_a_database_of_no_known_kind_is_refused_before_anything_is_made(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(SettingsError, match="database_url") as caught:
        create_home(tmp_path / "home", HomeOptions(database_url=url))
    assert "sqlite:////" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_copied_home_has_a_database_of_its_own(tmp_path: Path) -> None:
    create_home(tmp_path / "home")
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    config = load_config(tmp_path / "copy" / "controller.toml")
    assert config.database_url == f"sqlite:///{tmp_path}/copy/controller.db"


def test_a_copy_of_an_earlier_home_does_not_open_the_originals_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/home/controller.db"
    create_home(tmp_path / "home", HomeOptions(database_url=url))
    assert load_config(tmp_path / "home" / "controller.toml").database_url == url
    (tmp_path / "link").symlink_to(tmp_path / "home")
    assert load_config(tmp_path / "link" / "controller.toml").database_url == url
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    with pytest.raises(SettingsError, match="of another controller") as caught:
        load_config(tmp_path / "copy" / "controller.toml")
    assert "sqlite:///controller.db" in caught.value.remedy


@pytest.mark.parametrize("place", ["home", "home/keys", "."])
def test_keys_that_would_not_lie_apart(tmp_path: Path, place: str) -> None:
    with pytest.raises(HomeError):
        create_home(tmp_path / "home", HomeOptions(offline_keys=tmp_path / place))
    assert list(tmp_path.iterdir()) == []
