"""The controller's own account in the file of the broker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from controller.broker.accounts import ACCOUNTS_FILE, OwnAccount, give_password, hashed_client
from controller.broker.errors import BrokerDirectoryError
from controller.broker.rights import first_accounts

OWN = OwnAccount("_controller", "the new secret")


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / ACCOUNTS_FILE
    document = first_accounts(hashed_client(OWN.username, "the old secret") | changes)
    document["clients"].append(hashed_client("cam-1", "of a device"))
    path.write_text(json.dumps(document))
    return path


def clients(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_bytes())["clients"])


def test_the_account_gets_the_password_of_the_settings_and_keeps_its_rights(tmp_path: Path) -> None:
    path = written(tmp_path)
    own, device = clients(path)
    give_password(path, OWN)
    changed, other = clients(path)
    assert other == device
    assert changed["roles"] == own["roles"]
    assert changed["password"] != own["password"]
    assert "secret" not in path.read_text()


def test_nothing_is_written_where_the_password_is_right(tmp_path: Path) -> None:
    path = written(tmp_path)
    give_password(path, OWN)
    before = path.read_bytes()
    os.utime(path, (1, 1))
    give_password(path, OWN)
    assert path.read_bytes() == before
    assert path.stat().st_mtime == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"iterations": 0},
        {"iterations": 10**12},
        {"iterations": "101"},
        {"salt": "?"},
        {"salt": None},
        {"password": 7},
        {"encoded_password": "$argon2id$of-a-later-mosquitto"},
    ],
    ids=str,
)
def test_an_account_of_another_form_gets_the_password_too(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = written(tmp_path, **changes)
    give_password(path, OWN)
    before = path.read_bytes()
    give_password(path, OWN)
    assert path.read_bytes() == before
    assert "encoded_password" not in clients(path)[0]


def test_an_account_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    give_password(path, OwnAccount("another", "secret"))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"clients": 3}', "{ not json"])
def test_damaged_accounts_are_said_to_be_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / ACCOUNTS_FILE
    path.write_text(content)
    with pytest.raises(BrokerDirectoryError, match="is damaged"):
        give_password(path, OWN)
    assert path.read_text() == content


def test_the_secret_is_in_no_text_of_the_account() -> None:
    assert OWN.password not in repr(OWN)
    assert OWN.password not in str(OWN)
