"""The settings of downloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.config import ControllerConfig, load_config
from controller.download_settings import LinkPlace, PlainPlace, S3Place
from controller.errors import SettingsError

LEAST = 'database_url = "sqlite:///x.db"\n[downloads]\n'
S3 = '[[downloads.places]]\nkind = "s3"\nregion = "r"\ncredentials_file = "s3.ini"\n'


def load(directory: Path, text: str) -> ControllerConfig:
    path = directory / "controller.toml"
    path.write_text(LEAST + text)
    return load_config(path)


def test_there_are_none_by_default(tmp_path: Path) -> None:
    downloads = load(tmp_path, "").downloads
    assert (downloads.port, downloads.places) == (None, ())


def test_all_settings(tmp_path: Path) -> None:
    text = f"""
host = "0.0.0.0"
port = 8471
cert_file = "broker/server.pem"
key_file = "broker/server.pem"
public_url = "https://fleet.example:8471"
{S3}url = "https://models.s3.eu-central-1.amazonaws.com"
prefix = "blobs/"
[[downloads.places]]
kind = "plain"
url = "https://cdn.example/blobs"
[[downloads.places]]
kind = "link"
url = "https://near.example"
"""
    downloads = load(tmp_path, text).downloads
    assert downloads.cert_file == str(tmp_path / "broker/server.pem")
    bucket, mirror, checked = downloads.places
    assert isinstance(bucket, S3Place)
    assert bucket.credentials_file == str(tmp_path / "s3.ini")
    assert mirror == PlainPlace(url="https://cdn.example/blobs")
    assert checked == LinkPlace(url="https://near.example")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port = 65536\n", "downloads.port"),
        ("port = 1\nconnections = 0\n", "downloads.connections"),
        ("port = 1\nconnections_per_client = 5000\n", "downloads.connections_per_client"),
        ("valid_s = 59\n", "downloads.valid_s"),
        ("valid_s = 604801\n", "downloads.valid_s"),
        ('port = 1\ncert_file = "c"\n', "set together"),
        ('public_url = "https://x"\n', "need downloads.port"),
        ('port = 1\nhost = "0.0.0.0"\n', "public_url must say"),
        ('port = 1\npublic_url = "http://fleet.example"\n', "clear_text = true"),
        ('port = 1\npublic_url = "https://user@fleet.example"\n', "more than host"),
        ('port = 1\npublic_url = "https://fleet.example/?x"\n', "more than host"),
        ('port = 1\npublic_url = "https://fleet.example:70000"\n', "not a URL"),
        ('port = 1\npublic_url = "ftp://fleet.example"\n', "not an http"),
        ('port = 1\npublic_url = "fleet.example"\n', "not an http"),
        ('port = 1\npublic_url = "https://fleet.example\\n"\n', "not an http"),
        ('[[downloads.places]]\nkind = "link"\nurl = "https://x"\n', "need downloads.port"),
        ('[[downloads.places]]\nkind = "ftp"\nurl = "https://x"\n', "ftp"),
        ('[[downloads.places]]\nkind = "plain"\n', "url"),
        ('[[downloads.places]]\nkind = "plain"\nurl = "https://x"\nregion = "r"\n', "region"),
        (f'{S3}url = "http://minio.lan:9000/b"\n', "clear_text = true"),
        (f'{S3}url = "https://x"\nprefix = "a b"\n', "prefix"),
        (f'{S3}url = "https://x"\n' * 5, "more than 4"),
    ],
    ids=range(22),
)
def test_what_is_impossible_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_clear_text_is_for_who_asks_for_it(tmp_path: Path) -> None:
    text = (
        f'clear_text = true\nport = 1\npublic_url = "http://fleet.lan"\n{S3}url = "http://s3.lan"\n'
    )
    assert load(tmp_path, text).downloads.clear_text
    assert load(tmp_path, 'port = 1\npublic_url = "http://127.0.0.1:1"\n').downloads.port == 1
