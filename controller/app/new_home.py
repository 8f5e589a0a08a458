"""Makes a controller's data directory; see `controller.app.home` for what is in it.

Rules:
- Only the owner has access to the directory (0700) and to every secret in it (0600).
- The complete directory appears in one rename; one that exists is never changed.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from controller.app.home import BROKER_FOLDER, CONFIG_FILE
from controller.broker.access import CONTROLLER_USER, Command, first_accounts
from controller.broker.errors import HomeError
from controller.broker.mosquitto import ACCOUNTS_FILE
from wire.codec import to_pretty_json
from wire.files import PRIVATE, write_new
from wire.trust.envelope import SigningKey
from wire.trust.root import Role, TrustRoot, encode_key

TOKEN_FILE = "api.token"  # noqa: S105 - a file name
PASSWORD_FILE = "broker.password"  # noqa: S105 - a file name
TRUST_FILE = "trust.json"
RELEASE_KEY_FILE = "keys/release.key"
DIRECTOR_KEY_FILE = "keys/director.key"
BLOBS_FOLDER = "blobs"
DEFAULT_API_PORT = 8470
DEFAULT_BROKER_PORT = 1883
SECRET_BYTES = 32
SALT_BYTES = 12
"""What Mosquitto 2.0 itself writes."""

HASH_ITERATIONS = 101
"""Mosquitto's own number. More work per connect adds nothing to a password of 256 random bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeOptions:
    """What an operator may choose when a data directory is made."""

    api_host: str = "127.0.0.1"
    api_port: int = DEFAULT_API_PORT
    broker_host: str = "127.0.0.1"
    broker_port: int = DEFAULT_BROKER_PORT
    database_url: str = ""
    """SQLAlchemy URL; empty means SQLite in the directory."""


def create_home(directory: Path, options: HomeOptions | None = None) -> None:
    """Make a data directory with new keys and secrets.

    Args:
        directory: Where to make it; it must be empty or not exist.
        options: Addresses and database.

    Raises:
        HomeError: It exists, an option is impossible, or it cannot be written.
    """
    options = options or HomeOptions()
    _check_options(options)
    target = directory.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise HomeError(
            f"{directory} already exists",
            remedy="choose another directory, or use it as it is",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # mkdtemp makes it 0700; the rename replaces an empty directory and no other.
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            _fill(scratch, target, options)
            scratch.rename(target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as exc:
        raise HomeError(
            f"cannot make {directory}: {(exc.strerror or str(exc)).lower()}",
            remedy="choose a directory in which you may write",
        ) from exc


def hashed_client(username: str, password: str) -> Command:
    """Return a client of the dynamic-security plugin with its password hashed.

    Args:
        username: MQTT user name.
        password: The secret.

    Returns:
        The client as `dynamic-security.json` holds it.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, HASH_ITERATIONS)
    return {
        "username": username,
        "password": base64.b64encode(digest).decode(),
        "salt": base64.b64encode(salt).decode(),
        "iterations": HASH_ITERATIONS,
    }


def config_text(options: HomeOptions, home: Path) -> str:
    """Return the content of a new `controller.toml`; relative paths are relative to it."""
    url = options.database_url or f"sqlite:///{home / 'controller.db'}"
    # A JSON string is a TOML basic string.
    return f"""\
# The controller's settings. Relative paths are relative to this file.
database_url = {json.dumps(url)}
blobs_dir = "{BLOBS_FOLDER}"
trust_file = "{TRUST_FILE}"
director_key_file = "{DIRECTOR_KEY_FILE}"

[api]
host = {json.dumps(options.api_host)}
port = {options.api_port}
token_file = "{TOKEN_FILE}"

[broker]
host = {json.dumps(options.broker_host)}
port = {options.broker_port}
user = "{CONTROLLER_USER}"
password_file = "{PASSWORD_FILE}"
client_id = "{CONTROLLER_USER}"
"""


def _fill(scratch: Path, target: Path, options: HomeOptions) -> None:
    release, release_seed = SigningKey.generate()
    director, director_seed = SigningKey.generate()
    password = secrets.token_urlsafe(SECRET_BYTES)
    trust = TrustRoot(
        release=Role(keys=(encode_key(release.public_key),)),
        director=Role(keys=(encode_key(director.public_key),)),
    )
    for folder in ("keys", BROKER_FOLDER, BLOBS_FOLDER):
        (scratch / folder).mkdir(mode=0o700)
    files = {
        RELEASE_KEY_FILE: release_seed,
        DIRECTOR_KEY_FILE: director_seed,
        TRUST_FILE: trust.to_bytes(),
        TOKEN_FILE: f"{secrets.token_urlsafe(SECRET_BYTES)}\n".encode(),
        PASSWORD_FILE: f"{password}\n".encode(),
        f"{BROKER_FOLDER}/{ACCOUNTS_FILE}": to_pretty_json(
            first_accounts(hashed_client(CONTROLLER_USER, password))
        ),
        CONFIG_FILE: config_text(options, target).encode(),
    }
    for name, content in files.items():
        write_new(scratch / name, content, mode=PRIVATE)


def _check_options(options: HomeOptions) -> None:
    for name, port in (("API", options.api_port), ("broker", options.broker_port)):
        if not 1 <= port <= 65535:  # noqa: PLR2004 - TCP
            raise HomeError(f"the {name} port {port} is not within 1 to 65535")
    for name, host in (("API", options.api_host), ("broker", options.broker_host)):
        if not _is_host(host):
            raise HomeError(f"the {name} host {host!r} is not an address or a name")


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and all(c.isascii() and (c.isalnum() or c in "-._") for c in host)
    return True
