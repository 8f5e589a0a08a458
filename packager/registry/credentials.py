"""Finds what logs in to a registry, where Docker, Podman and Skopeo keep it.

Rules:
- A password is never an argument of a command, never in a fault and never in what `repr` shows.
- The file is only read: logging in is the business of those programs.
- A helper gets the name of the registry on its standard input, as Docker does it.

Source:
    Docker, "docker login": `auths`, `credHelpers` and `credsStore` of `config.json`;
    containers-auth.json(5): `REGISTRY_AUTH_FILE`, and keys that name a part of a registry.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from packager.errors import RegistryError
from packager.files import read_bounded
from packager.registry.reference import Reference
from wire.codec import from_json
from wire.errors import WireFormatError

MAX_FILE_BYTES: Final = 1024**2
HELPER_TIMEOUT_S: Final = 60.0
"""A helper may ask a person or a server."""

TOKEN_USER: Final = "<token>"  # noqa: S105 - how a helper says that the secret is a token
_HELPER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What one registry knows us by; one of password and token is empty."""

    username: str
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """An identity token, to be exchanged for another one."""

    @property
    def basic(self) -> str:
        """The value of the header for HTTP's basic authentication; empty for a token."""
        if self.token:
            return ""
        pair = f"{self.username}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


class _Entry(msgspec.Struct, rename="lower"):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct, rename="camel"):
    auths: dict[str, _Entry] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Told(msgspec.Struct, rename="pascal"):
    username: str
    secret: str


def login_file(environment: Mapping[str, str], home: Path) -> Path:
    """Return the file that holds credentials, which need not exist.

    Args:
        environment: REGISTRY_AUTH_FILE, or DOCKER_CONFIG, a directory.
        home: The user's home directory.

    Returns:
        Its path.
    """
    if named := environment.get("REGISTRY_AUTH_FILE"):
        return Path(named)
    if directory := environment.get("DOCKER_CONFIG"):
        return Path(directory) / "config.json"
    return home / ".docker" / "config.json"


def find_login(file: Path, reference: Reference) -> Login | None:
    """Find the credentials for a repository.

    Args:
        file: As `login_file` says.
        reference: What is asked for.

    Returns:
        The credentials; None if there are none for this registry.

    Raises:
        RegistryError: The file, its entry or a helper is unusable.
    """
    try:
        is_there = file.exists()
    except OSError as exc:
        raise RegistryError(f"{file} cannot be read: {exc.strerror}") from exc
    if not is_there:
        return None
    config = _decoded(read_bounded(file, MAX_FILE_BYTES, RegistryError), _Config, file)
    if helper := config.cred_helpers.get(reference.host):
        return _from_helper(helper, reference.host)
    entries = {_place(key): entry for key, entry in config.auths.items()}
    for place in _places(reference):
        if place in entries and (login := _from_entry(entries[place], file)) is not None:
            return login
    return _from_helper(config.creds_store, reference.host) if config.creds_store else None


def _place(key: str) -> str:
    """Return the registry that a key names; older ones are addresses of an API."""
    scheme, separator, rest = key.partition("://")
    return rest.partition("/")[0] if separator and scheme in {"http", "https"} else key


def _places(reference: Reference) -> list[str]:
    """Return the keys that cover a repository, the narrowest first."""
    parts = reference.repository.split("/")
    inner = ["/".join((reference.host, *parts[:count])) for count in range(len(parts), 0, -1)]
    return [*inner, reference.host]


def _from_entry(entry: _Entry, file: Path) -> Login | None:
    username, password = entry.username, entry.password
    if entry.auth:
        try:
            pair = base64.b64decode(entry.auth, validate=True).decode()
        except (binascii.Error, ValueError) as exc:
            raise _unusable(file) from exc
        username, separator, password = pair.rstrip("\0").partition(":")
        if not separator:
            raise _unusable(file)
    if entry.identitytoken:
        return Login(username=username, token=entry.identitytoken)
    return Login(username=username, password=password) if username or password else None


def _from_helper(helper: str, host: str) -> Login | None:
    """Ask a helper for the credentials of a registry.

    Raises:
        RegistryError: It cannot be run, or says something else.
    """
    if _HELPER_NAME.fullmatch(helper) is None:
        raise RegistryError("the name of a credential helper is not a plain name")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=host.encode(),
            capture_output=True,
            check=False,
            timeout=HELPER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        why = "cannot be run" if isinstance(exc, OSError) else "did not answer in time"
        raise RegistryError(f"{program} {why}", remedy="run it by hand, or log in again") from exc
    # A helper that has nothing for this registry ends with a status; so does one that fails.
    if done.returncode != 0:
        return None
    told = _decoded(done.stdout, _Told, program)
    if told.username == TOKEN_USER:
        return Login(username=told.username, token=told.secret)
    return Login(username=told.username, password=told.secret)


def _decoded(content: bytes, kind: type[T], source: Path | str) -> T:
    try:
        return from_json(content, kind, limit_bytes=MAX_FILE_BYTES)
    except WireFormatError:
        raise _unusable(source) from None  # the reason might repeat a part of a secret


def _unusable(source: Path | str) -> RegistryError:
    return RegistryError(
        f"{source} holds no credentials of the form that Docker keeps", remedy="log in again"
    )
