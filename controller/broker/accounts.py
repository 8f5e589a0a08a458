"""The file of the broker's accounts, and the controller's own account in it.

Rules:
- The broker keeps the file; nobody else writes it while it runs.
- At each start of the broker the controller's account gets the password of the controller's
  settings. So a password that was stolen is changed by writing another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any, Final

import msgspec

from controller.broker.errors import BrokerDirectoryError
from controller.broker.rights import Command
from wire.codec import to_pretty_json
from wire.files import PRIVATE, read_regular, write_atomic

ACCOUNTS_FILE: Final = "dynamic-security.json"
SALT_BYTES: Final = 12
"""What Mosquitto 2.0 itself writes."""

HASH_ITERATIONS: Final = 101
"""Mosquitto's own number. More work per connect adds nothing to a password of 256 random bits."""

MAX_ITERATIONS: Final = 1_000_000
MAX_FILE_BYTES: Final = 1024 * 1024 * 1024
"""An account with its role has some 2 kB."""


class OwnAccount(msgspec.Struct, frozen=True):
    """The account by which the controller logs in."""

    username: str
    password: str

    def __repr__(self) -> str:  # no secret in a log
        return f"OwnAccount({self.username!r})"


def hashed_client(username: str, password: str) -> Command:
    """Return a client of the dynamic-security plugin with its password hashed.

    Args:
        username: MQTT user name.
        password: The secret.

    Returns:
        The client as `dynamic-security.json` holds it.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    return {
        "username": username,
        "password": base64.b64encode(_hashed(password, salt, HASH_ITERATIONS)).decode(),
        "salt": base64.b64encode(salt).decode(),
        "iterations": HASH_ITERATIONS,
    }


def read_accounts(path: Path) -> dict[str, Any]:
    """Read the accounts: Mosquitto itself starts without them and gives no error.

    Args:
        path: The file.

    Returns:
        Its content, with a list of clients.

    Raises:
        BrokerDirectoryError: Missing, unreadable or damaged.
    """
    try:
        document = json.loads(read_regular(path, MAX_FILE_BYTES))
    except FileNotFoundError as exc:
        raise BrokerDirectoryError(
            f"{path} is missing", remedy="make the directory with `fleet init`"
        ) from exc
    except OSError as exc:
        raise BrokerDirectoryError(
            f"cannot read {path}: {(exc.strerror or str(exc)).lower()}", remedy="run as its owner"
        ) from exc
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("clients"), list):
        raise BrokerDirectoryError(
            f"{path} is damaged", remedy="restore it from a backup; it holds the devices' accounts"
        )
    return document


def give_password(path: Path, own: OwnAccount) -> None:
    """Let the controller's account have the password of the controller's settings.

    Args:
        path: The file of the accounts, of a broker that does not run.
        own: The account. One that the file does not have is left to whoever set it up.

    Raises:
        BrokerDirectoryError: The file is missing, damaged, or cannot be written.
    """
    document = read_accounts(path)
    clients = [_with_password(client, own) for client in document["clients"]]
    try:
        if clients != document["clients"]:
            write_atomic(path, to_pretty_json({**document, "clients": clients}), mode=PRIVATE)
    except OSError as exc:
        raise BrokerDirectoryError(
            f"cannot write {path}: {(exc.strerror or str(exc)).lower()}",
            remedy="run as its owner, or make room on the disk",
        ) from exc


def _with_password(client: object, own: OwnAccount) -> object:
    if not isinstance(client, dict) or client.get("username") != own.username:
        return client
    if _opens(client, own.password):
        return client
    kept = {name: value for name, value in client.items() if name != "encoded_password"}
    return kept | hashed_client(own.username, own.password)


def _opens(client: Command, password: str) -> bool:
    """Tell whether an account has a password."""
    iterations = client.get("iterations")
    if not isinstance(iterations, int) or not 1 <= iterations <= MAX_ITERATIONS:
        return False
    try:
        salt, digest = (base64.b64decode(str(client.get(name))) for name in ("salt", "password"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(_hashed(password, salt, iterations), digest)


def _hashed(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
