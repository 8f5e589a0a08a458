"""Keys and accounts: made once, private, and no damage beside the key matters."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from agent.errors import ConfigError, StorageError
from agent.link.identity import CREDENTIALS_FILE, KEY_FILE, Identity
from wire.enrolment import is_client_id_of

OLD = {"device": "dev-1", "password": "the random password of an older agent", "enrolled": True}


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    first = Identity(tmp_path, "dev-1")
    again = Identity(tmp_path, "dev-1")
    assert again.key.public_key == first.key.public_key
    assert again.credentials == first.credentials
    assert again.account == first.account
    assert not first.credentials.enrolled
    assert first.account.username == "dev-1"
    assert len(first.account.password or "") >= 43


def test_the_files_are_private(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1")
    for name in (KEY_FILE, CREDENTIALS_FILE):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_two_devices_have_different_secrets(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = Identity(tmp_path / "a", "dev-a"), Identity(tmp_path / "b", "dev-b")
    assert a.key.public_key != b.key.public_key
    assert a.account.password != b.account.password
    assert a.account.client_id != b.account.client_id


def test_a_client_identifier_says_nothing_of_the_password_and_belongs_to_one_device(
    tmp_path: Path,
) -> None:
    account = Identity(tmp_path, "dev-1").account
    assert is_client_id_of("dev-1", account.client_id)
    for other in ("dev", "dev-2", "dev-1:", ""):
        assert not is_client_id_of(other, account.client_id)
    for wrong in ("dev-1", "dev-1:", "dev-1:0", f"dev-1:{'0' * 33}", f"dev-1:{'G' * 32}"):
        assert not is_client_id_of("dev-1", wrong)
    assert account.client_id.partition(":")[2] not in (account.password or "")


def test_confirmation_is_remembered(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1").confirm()
    assert Identity(tmp_path, "dev-1").credentials.enrolled


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_flipped_byte_of_the_credentials_costs_the_account(tmp_path: Path, mask: int) -> None:
    first = Identity(tmp_path, "dev-1")
    first.confirm()
    path = tmp_path / CREDENTIALS_FILE
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= mask
        path.write_bytes(damaged)
        assert Identity(tmp_path, "dev-1").account == first.account
    for content in (b"", whole[: len(whole) // 2], b"\x00" * len(whole), whole * 1000):
        path.write_bytes(content)
        again = Identity(tmp_path, "dev-1")
        assert again.account == first.account
        assert not again.credentials.enrolled, "it asks again, with its key"


def test_an_older_agents_password_is_used_until_the_device_enrols_again(tmp_path: Path) -> None:
    (tmp_path / CREDENTIALS_FILE).write_text(json.dumps(OLD))
    identity = Identity(tmp_path, "dev-1")
    assert identity.credentials.enrolled
    assert (identity.account.client_id, identity.account.password) == ("dev-1", OLD["password"])
    identity.confirm()
    assert identity.account == identity.own_account
    assert str(OLD["password"]) not in (tmp_path / CREDENTIALS_FILE).read_text()


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConfigError, match="5 bytes, not 32"):
        Identity(tmp_path, "dev-1")


def test_a_key_without_an_end_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="more than 32 bytes, not 32"):
        Identity(tmp_path, "dev-1")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match=r"cannot read device\.key: it is not a file"):
        Identity(tmp_path, "dev-1")


def test_nobody_waits_on_pipes_in_the_place_of_key_and_credentials(tmp_path: Path) -> None:
    first = Identity(tmp_path, "dev-1")
    (tmp_path / CREDENTIALS_FILE).unlink()
    os.mkfifo(tmp_path / CREDENTIALS_FILE)
    assert Identity(tmp_path, "dev-1").account == first.account
    assert (tmp_path / CREDENTIALS_FILE).is_file()
    (tmp_path / KEY_FILE).unlink()
    os.mkfifo(tmp_path / KEY_FILE)
    with pytest.raises(StorageError, match=r"cannot read device\.key: it is not a file"):
        Identity(tmp_path, "dev-1")


def test_a_flipped_bit_of_the_key_is_told_as_that(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1").confirm()
    path = tmp_path / KEY_FILE
    seed = bytearray(path.read_bytes())
    seed[0] ^= 1
    path.write_bytes(seed)
    with pytest.raises(ConfigError, match="not the key with which this device enrolled") as caught:
        Identity(tmp_path, "dev-1")
    assert "new token" in caught.value.remedy


def test_the_directory_of_another_device_is_refused(tmp_path: Path) -> None:
    Identity(tmp_path, "dev-1")
    with pytest.raises(ConfigError, match="belongs to dev-1, but the configuration names dev-2"):
        Identity(tmp_path, "dev-2")
