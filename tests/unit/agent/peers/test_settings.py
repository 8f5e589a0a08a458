"""Where a device serves others, and what it tells them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app.config_file import load_config
from agent.errors import ConfigError
from agent.peers.settings import Address, PeerSettings, parse_address, told_address

LEAST = 'device = "cam-1"\nstate_dir = "state"\nprofile = "p.toml"\ntrust = "t.json"\n'
PORT = 8471


@given(host=st.ip_addresses(), port=st.integers(1, 65535))
def test_an_address_is_read_as_it_is_written(host: object, port: int) -> None:
    address = Address(str(host), port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "8471", ":8471", "cam-1:8471", "localhost:8471", "1.2.3:8471", "1.2.3.4"),
        *("1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:08471", "::1:8471", "[1.2.3.4]:8471"),
        *("[fe80::1%eth0]:8471", "http://1.2.3.4:8471", "1.2.3.4:8471 ", "256.1.1.1:8471"),
        *("01.2.3.4:8471", "*:8471"),
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    assert parse_address(text) is None
    assert PeerSettings(listen=text).faults()


@pytest.mark.parametrize(
    ("listen", "address", "own", "told"),
    [
        (None, None, "192.168.1.20", None),
        ("192.168.1.20:8471", None, "10.0.0.1", "192.168.1.20:8471"),
        ("0.0.0.0:8471", None, "192.168.1.20", "192.168.1.20:8471"),
        ("0.0.0.0:8471", None, "::ffff:192.168.1.20", "192.168.1.20:8471"),
        ("0.0.0.0:8471", None, "2001:db8::1", None),
        ("[::]:8471", None, "2001:db8::1", "[2001:db8::1]:8471"),
        ("[::]:8471", None, "192.168.1.20", "192.168.1.20:8471"),
        ("[::]:8471", None, "fe80::1%eth0", None),
        ("[::]:8471", None, "fe80::1", None),
        ("0.0.0.0:8471", None, "169.254.1.1", None),
        ("[::]:8471", None, "::", None),
        ("0.0.0.0:8471", None, "", None),
        ("0.0.0.0:8471", "192.168.1.20:9000", "172.17.0.2", "192.168.1.20:9000"),
        ("0.0.0.0:8471", "[2001:db8::1]:9000", "", "[2001:db8::1]:9000"),
    ],
)
def test_others_are_told_an_address_that_they_can_reach(
    listen: str | None, address: str | None, own: str, told: str | None
) -> None:
    settings = PeerSettings(listen=listen, address=address)
    assert settings.faults() == []
    found = told_address(settings, own)
    assert (str(found) if found is not None else None) == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[peers]\nlisten = "cam-1:8471"\n', "peers.listen is not an IP address and a port, such"),
        ('[peers]\naddress = "1.2.3.4:1"\n', "peers.address needs peers.listen"),
        ('[peers]\nlisten = "0.0.0.0:1"\naddress = "0.0.0.0:1"\n', "not the IP address and port"),
        ('[peers]\nlisten = "0.0.0.0:1"\naddress = "x:1"\n', "not the IP address and port of one"),
        ('[peers]\nlisten = "0.0.0.0:1"\nat_once = 0\n', "peers.at_once is not within 1 to 64"),
        (
            '[peers]\nlisten = "0.0.0.0:1"\nbytes_per_s = 32767\n',
            "peers.bytes_per_s is below 65536",
        ),
        (
            '[peers]\nlisten = "0.0.0.0:1"\nat_one = 1\n',
            "no setting peers.at_one (did you mean peers",
        ),
        ("[delivery]\npeer_wait_s = -1\n", "delivery.peer_wait_s is not within 0 to 86400"),
        ("[delivery]\npeer_wait_s = nan\n", "delivery.peer_wait_s is not within 0 to 86400"),
        ('[delivery]\nsources = ["peer"]\n', 'needs "http" or "mqtt"'),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(LEAST + text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert message in str(caught.value)


def test_nobody_is_served_and_no_other_device_is_asked_by_default(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(LEAST)
    config = load_config(path)
    assert config.peers.listen is None
    assert "peer" not in config.delivery.sources
