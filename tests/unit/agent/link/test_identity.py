"""Keys and passwords: made once, private, never in an error."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent.errors import ConfigError
from agent.link.identity import CREDENTIALS_FILE, KEY_FILE, Identity


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    first = Identity(tmp_path, "dev-1")
    again = Identity(tmp_path, "dev-1")
    assert again.key.public_key == first.key.public_key
    assert again.credentials == first.credentials
    assert not first.credentials.enrolled
    assert len(first.credentials.password) >= 43


def test_the_files_are_private(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1")
    for name in (KEY_FILE, CREDENTIALS_FILE):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_two_devices_have_different_secrets(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = Identity(tmp_path / "a", "dev-a"), Identity(tmp_path / "b", "dev-b")
    assert a.key.public_key != b.key.public_key
    assert a.credentials.password != b.credentials.password


def test_confirmation_is_remembered(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1").confirm()
    assert Identity(tmp_path, "dev-1").credentials.enrolled


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 bytes, not 32"):
        Identity(tmp_path, "dev-1")


def test_damaged_credentials_are_refused_without_telling_them(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1")
    (tmp_path / CREDENTIALS_FILE).write_text('{"device": "dev-1", "password": hunter2')
    with pytest.raises(ConfigError) as caught:
        Identity(tmp_path, "dev-1")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_directory_of_another_device_is_refused(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1")
    with pytest.raises(ConfigError, match="belongs to dev-1, but the configuration names dev-2"):
        Identity(tmp_path, "dev-2")
