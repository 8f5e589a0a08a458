"""Makes a controller's data directory, and the keys that lie apart from it; `home` lists the files.

Rules:
- Only the owner has access to both directories (0700) and to every file in them (0600). The files
  that devices get are public (0644), so that a copy of them can be read there.
- Each appears complete in one rename, the keys first; one that exists is never changed. What a
  killed command left beside them is removed by the next one.
- The broker speaks TLS unless clear text is asked for, which is for loopback only.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from controller.app.home import (
    BROKER_FOLDER,
    CA_FILE,
    CA_KEY_FILE,
    CONFIG_FILE,
    DATABASE_FILE,
    DIRECTOR_KEY_FILE,
    PUBLIC_FILES,
    RELEASE_KEY_FILE,
    TRUST_FILE,
    offline_directory,
)
from controller.app.new_trust import first_metadata
from controller.app.unfinished import check_path, unfinished
from controller.broker.access import CONTROLLER_USER
from controller.broker.accounts import ACCOUNTS_FILE, hashed_client
from controller.broker.certificates import is_host, issue, make_authority, names_for
from controller.broker.errors import HomeError
from controller.broker.rights import first_accounts
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import BrokerConfig
from controller.metadata.store import FOLDER
from controller.store.database import Database
from wire.clock import SystemClock
from wire.codec import to_pretty_json
from wire.files import PRIVATE, PUBLIC, remedy_of, write_new
from wire.hosts import is_loopback
from wire.trust.envelope import SigningKey
from wire.trust.root import Role, TrustRoot, encode_key

TOKEN_FILE = "api.token"  # noqa: S105 - a file name
PASSWORD_FILE = "broker.password"  # noqa: S105 - a file name
BLOBS_FOLDER = "blobs"
DEFAULT_API_PORT = 8470
TLS_PORT, CLEAR_TEXT_PORT = 8883, 1883
"""As registered for MQTT."""

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104 - with TLS and accounts
SERVER_FILE = BrokerConfig().server_cert_file
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeOptions:
    """What an operator may choose when a data directory is made."""

    api_host: str = "127.0.0.1"
    api_port: int = DEFAULT_API_PORT
    broker_host: str = ""
    """Where the broker listens. Empty means loopback, or all addresses when it has names."""

    broker_port: int | None = None
    """None means the port that is registered for MQTT, with TLS or without."""

    device_port: int | None = None
    """Where the broker listens for devices with certificates. None means one above its own."""

    broker_names: tuple[str, ...] = ()
    """Names and addresses by which devices reach the broker."""

    clear_text: bool = False
    """No TLS, on loopback only."""

    offline_keys: Path | None = None
    """Where the keys go that a controller does not need; None means beside the data directory."""

    database_url: str = ""
    """SQLAlchemy URL; empty means SQLite in the directory."""


def create_home(directory: Path, options: HomeOptions | None = None) -> None:
    """Make a data directory with new keys, certificates and secrets.

    Args:
        directory: Where to make it; it must be empty or not exist.
        options: Addresses, database and encryption.

    Raises:
        CertificateError: There is no `openssl`, which makes certificates.
        HomeError: It exists, an option is impossible, or it cannot be written.
        SettingsError: The URL of the database is none.
    """
    options = _complete(options or HomeOptions())
    _check_options(options)
    target = directory.absolute()
    offline = (options.offline_keys or offline_directory(target)).absolute()
    _check_places(target, offline)
    try:
        for place in (target, offline):
            place.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target) as scratch, unfinished(offline) as apart:
            home, keys = scratch / target.name, apart / offline.name
            _fill(home, keys, options)
            with contextlib.ExitStack() as undo:
                keys.rename(offline)
                undo.callback(shutil.rmtree, offline, ignore_errors=True)
                home.rename(target)
                undo.pop_all()
    except OSError as exc:
        raise HomeError(
            f"cannot make {directory}: {(exc.strerror or str(exc)).lower()}",
            remedy=remedy_of(exc, "choose a directory in which you may write"),
        ) from exc


def config_text(options: HomeOptions) -> str:
    """Return the content of a new `controller.toml`; relative paths are relative to it."""
    url, certificates = options.database_url or f"sqlite:///{DATABASE_FILE}", ""
    if options.clear_text:
        encryption = (
            "clear_text = true   # for tests on this machine: the broker does not speak TLS"
        )
    else:
        encryption = f'ca_file = "{CA_FILE}"\nnames = {json.dumps(options.broker_names)}'
        certificates = certificates_text(options.device_port)
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
{encryption}
user = "{CONTROLLER_USER}"
password_file = "{PASSWORD_FILE}"
client_id = "{CONTROLLER_USER}"
{certificates}"""


def certificates_text(port: int | None) -> str:
    """Return the part of a `controller.toml` by which devices log in with certificates.

    Args:
        port: Where the broker listens for them; None for the usual port.
    """
    settings = DeviceCertificatesConfig() if port is None else DeviceCertificatesConfig(port=port)
    return f"""
[device_certificates]
port = {settings.port}   # where the broker listens for devices with certificates
ca_file = "{settings.ca_file}"
key_file = "{settings.key_file}"
valid_days = {settings.valid_days:g}
accept_passwords = false   # true lets devices enrol that have an older agent
"""


def _fill(home: Path, keys: Path, options: HomeOptions) -> None:
    release, release_seed = SigningKey.generate()
    director, director_seed = SigningKey.generate()
    password = secrets.token_urlsafe(SECRET_BYTES)
    trust = TrustRoot(
        release=Role(keys=(encode_key(release.public_key),)),
        director=Role(keys=(encode_key(director.public_key),)),
    )
    folders = ("keys", BROKER_FOLDER, BLOBS_FOLDER, FOLDER)
    for folder in (home, keys, *(home / name for name in folders)):
        folder.mkdir(mode=0o700)
    files = {
        keys / RELEASE_KEY_FILE: release_seed,
        home / DIRECTOR_KEY_FILE: director_seed,
        home / TRUST_FILE: trust.to_bytes(),
        home / TOKEN_FILE: f"{secrets.token_urlsafe(SECRET_BYTES)}\n".encode(),
        home / PASSWORD_FILE: f"{password}\n".encode(),
        home / BROKER_FOLDER / ACCOUNTS_FILE: to_pretty_json(
            first_accounts(hashed_client(CONTROLLER_USER, password))
        ),
        home / CONFIG_FILE: config_text(options).encode(),
    }
    files |= first_metadata(
        home,
        keys,
        release=release_seed,
        director=director_seed,
        now_s=SystemClock().now_s(),
    )
    if not options.clear_text:
        authority, devices = make_authority(home), make_authority(home, "devices")
        certificates = DeviceCertificatesConfig()
        names = names_for(options.broker_host, options.broker_names)
        files |= {
            keys / CA_KEY_FILE: authority.key,
            home / CA_FILE: authority.certificate,
            home / SERVER_FILE: issue(authority, names, home),
            home / certificates.key_file: devices.key,
            home / certificates.ca_file: devices.certificate,
        }
    for path, content in files.items():
        write_new(path, content, mode=PUBLIC if path.name in PUBLIC_FILES else PRIVATE)


def _complete(options: HomeOptions) -> HomeOptions:
    """Choose what the operator has not chosen."""
    port = CLEAR_TEXT_PORT if options.clear_text else TLS_PORT
    port = port if options.broker_port is None else options.broker_port
    return replace(
        options,
        broker_host=options.broker_host or (EVERYWHERE if options.broker_names else LOOPBACK),
        broker_port=port,
        device_port=port + 1 if options.device_port is None else options.device_port,
    )


def _check_options(options: HomeOptions) -> None:
    ports = [("API", options.api_port), ("broker", options.broker_port)]
    if not options.clear_text:
        ports.append(("devices'", options.device_port))
    for name, port in ports:
        if port is None or not 1 <= port <= 65535:  # noqa: PLR2004 - TCP
            raise HomeError(f"the {name} port {port} is not within 1 to 65535")
    hosts = [("API", options.api_host), ("broker", options.broker_host)]
    for name, host in (*hosts, *(("broker", name) for name in options.broker_names)):
        if not is_host(host):
            raise HomeError(f"the {name} host {host!r} is not an address or a name")
    if options.database_url:
        Database(options.database_url).close()  # refuses what is no URL of a database; asks none
    if options.clear_text and not is_loopback(options.broker_host):
        raise HomeError(
            f"clear text is for loopback only, not for {options.broker_host}",
            remedy="let the broker speak TLS, or let it listen on 127.0.0.1",
        )


def _check_places(target: Path, offline: Path) -> None:
    """Insist on two new places, neither below the other.

    Raises:
        HomeError: One exists, is below the other, or has a path that cannot be named.
    """
    remedies = {
        target: "choose another directory, or use it as it is",
        offline: "it may hold another fleet's keys: name another directory with --offline-keys",
    }
    for path, remedy in remedies.items():
        check_path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise HomeError(f"{path} already exists", remedy=remedy)
    if target == offline or target in offline.parents or offline in target.parents:
        raise HomeError(
            f"the offline keys in {offline} would not be apart from {target}",
            remedy="choose another directory for them",
        )
