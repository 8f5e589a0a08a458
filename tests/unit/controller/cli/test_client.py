from __future__ import annotations

from pathlib import Path

import pytest

from controller.app.new_home import HomeOptions, create_home
from controller.client.connection import segment
from controller.client.errors import IdentifierError, NoControllerError
from controller.client.target import ConnectionOptions, find_controller
from controller.errors import SettingsError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_home(tmp_path / "home", HomeOptions(api_port=7001))
    return tmp_path / "home"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    return path


def test_home_says_where_the_controller_is(home: Path) -> None:
    for target in (
        find_controller(ConnectionOptions(home=home), {}),
        find_controller(ConnectionOptions(), {"FLEET_HOME": str(home)}),
    ):
        assert target.url == "http://127.0.0.1:7001"
        assert target.token == (home / "api.token").read_text().strip()


def test_address_and_token(token_file: Path) -> None:
    options = ConnectionOptions(url="https://fleet.example/", token_file=token_file)
    target = find_controller(options, {"FLEET_TOKEN": "other"})
    assert (target.url, target.token) == ("https://fleet.example", "from-a-file")
    target = find_controller(
        ConnectionOptions(), {"FLEET_URL": "http://x:1", "FLEET_TOKEN": "secret"}
    )
    assert (target.url, target.token) == ("http://x:1", "secret")
    assert "secret" not in repr(target)


def test_a_file_without_a_token(token_file: Path) -> None:
    token_file.write_text("\n")
    with pytest.raises(NoControllerError, match="holds no token"):
        find_controller(ConnectionOptions(url="http://x", token_file=token_file), {})


def test_a_home_with_tls_names_its_authority(home: Path, tmp_path: Path) -> None:
    config = home / "controller.toml"
    tls = '[api]\ncert_file = "api.pem"\nkey_file = "api.key"\nca_file = "ca.pem"\n'
    config.write_text(config.read_text().replace("[api]\n", tls))
    target = find_controller(ConnectionOptions(home=home), {})
    assert (target.url, target.ca_file) == ("https://127.0.0.1:7001", home / "ca.pem")
    other = tmp_path / "other.pem"
    for options, environment in (
        (ConnectionOptions(home=home, ca_file=other), {"FLEET_CA_FILE": "/nowhere"}),
        (ConnectionOptions(home=home), {"FLEET_CA_FILE": str(other)}),
    ):
        assert find_controller(options, environment).ca_file == other


def test_option_beats_environment(home: Path) -> None:
    target = find_controller(
        ConnectionOptions(home=home), {"FLEET_URL": "http://x:1", "FLEET_TOKEN": "t"}
    )
    assert target.url == "http://127.0.0.1:7001"


@pytest.mark.parametrize(
    ("options", "environment", "text"),
    [
        (ConnectionOptions(), {}, "no controller is named"),
        (ConnectionOptions(url="http://x"), {}, "no token for http://x"),
        (ConnectionOptions(url="ftp://x"), {"FLEET_TOKEN": "t"}, "is not an address"),
        (ConnectionOptions(url="http://x", token_file=Path("/nowhere")), {}, "no such file"),
        (ConnectionOptions(url="http://x", token_file=Path("/dev/null")), {}, "is not a file"),
    ],
)
def test_no_controller(options: ConnectionOptions, environment: dict[str, str], text: str) -> None:
    with pytest.raises(NoControllerError, match=text) as caught:
        find_controller(options, environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", ["secret\n", "a\r\nX: y", "two words", "\u00e9"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    options = ConnectionOptions(url="http://127.0.0.1:1")
    with pytest.raises(NoControllerError, match="FLEET_TOKEN holds a space") as caught:
        find_controller(options, {"FLEET_TOKEN": token})
    assert token.strip() not in str(caught.value)


def test_an_address_with_a_space_is_refused() -> None:
    with pytest.raises(NoControllerError, match="is not an address: it holds a space"):
        find_controller(ConnectionOptions(url="http://a b"), {"FLEET_TOKEN": "t"})


def test_home_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="fleet init"):
        find_controller(ConnectionOptions(home=tmp_path), {})


def test_identifiers_cannot_leave_their_segment() -> None:
    assert segment("digits:1.0") == "digits:1.0"
    assert segment("..x?y#z") == "..x%3Fy%23z"
    for bad in ("", ".", "..", "../../etc", "a/b"):
        with pytest.raises(IdentifierError):
            segment(bad)
