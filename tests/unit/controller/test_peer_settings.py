"""The settings of peers."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from controller.config import ControllerConfig, load_config
from controller.errors import SettingsError

LEAST = 'database_url = "sqlite:///x.db"\n'
LABEL = 'label = "site"\n'


def load(directory: Path, text: str) -> ControllerConfig:
    path = directory / "controller.toml"
    path.write_text(LEAST + text)
    return load_config(path)


def test_there_are_none_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, "").peers.label is None
    assert load(tmp_path, "[peers]\n").peers.label is None


def test_a_label_is_enough(tmp_path: Path) -> None:
    peers = load(tmp_path, f"[peers]\n{LABEL}").peers
    assert (peers.label, peers.most) == ("site", 2)
    allowed = peers.allowed()
    for inside in ("10.9.8.7", "172.16.0.1", "192.168.0.1", "169.254.1.1", "fd00::1"):
        assert any(ipaddress.ip_address(inside) in network for network in allowed), inside
    for outside in ("8.8.8.8", "127.0.0.1", "fe80::1", "2001:db8::1"):
        assert not any(ipaddress.ip_address(outside) in network for network in allowed), outside


def test_all_settings(tmp_path: Path) -> None:
    text = '[peers]\nlabel = "place/room"\nnetworks = ["192.168.7.0/24", "fd00:7::/64"]\nmost = 8\n'
    peers = load(tmp_path, text).peers
    assert (peers.label, peers.most) == ("place/room", 8)
    assert peers.allowed() == (
        ipaddress.ip_network("192.168.7.0/24"),
        ipaddress.ip_network("fd00:7::/64"),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("most = 3\n", "peers.label is missing"),
        ('networks = ["10.0.0.0/8"]\n', "peers.label is missing"),
        ('label = ""\n', "peers.label is not the key"),
        ('label = "id"\n', "peers.label is not the key"),
        ('label = "Site"\n', "peers.label is not the key"),
        ('label = "a\\nb"\n', "peers.label is not the key"),
        ("label = 7\n", "peers.label must be a text or nothing, not a whole number"),
        (f"{LABEL}most = 0\n", "peers.most is not within 1 to 8"),
        (f"{LABEL}most = 9\n", "peers.most is not within 1 to 8"),
        (f"{LABEL}networks = []\n", "1 to 64 networks"),
        (f"{LABEL}networks = {['10.0.0.0/8'] * 65}\n", "1 to 64 networks"),
        (f'{LABEL}networks = ["10.0.0.1/8"]\n', "no network such as 192.168.0.0/16"),
        (f'{LABEL}networks = ["10.0.0.0/33"]\n', "no network"),
        (f'{LABEL}networks = ["site.example"]\n', "no network"),
        (f'{LABEL}networks = ["fe80::%eth0/64"]\n', "no network"),
        (f"{LABEL}netwroks = []\n", "did you mean peers.networks"),
    ],
    ids=range(16),
)
def test_what_is_impossible_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        load(tmp_path, f"[peers]\n{text}")
    assert "\n" not in str(caught.value)
