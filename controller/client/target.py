"""How a client finds the controller, and the secret for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controller.client.errors import NoControllerError
from wire.files import open_file

if TYPE_CHECKING:
    import ssl

MAX_TOKEN_BYTES = 4096
REMEDY = (
    "use --home DIR, or --url URL with --token-file FILE (or set FLEET_HOME, or FLEET_URL and "
    "FLEET_TOKEN)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What says where the controller is, as given."""

    home: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    api_clear_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Target:
    """A controller's address and the secret for it."""

    url: str
    token: str
    ca_file: Path | None = None
    """Authority of the certificate; None for those of the system."""

    clear_text: bool = False
    """Whether the token may go to another machine without TLS."""


def find_controller(options: ConnectionOptions, environment: Mapping[str, str]) -> Target:
    """Find the controller: options come before the environment, an address before a directory.

    Args:
        options: From the command line.
        environment: FLEET_HOME, FLEET_URL, FLEET_TOKEN, FLEET_CA_FILE, FLEET_API_CLEAR_TEXT.

    Returns:
        Address, token and authority.

    Raises:
        NoControllerError: No setting names a controller, or its file cannot be read.
    """
    token_file, url, home = options.token_file, options.url, options.home
    ca_file = options.ca_file or _path(environment, "FLEET_CA_FILE")
    clear_text = options.api_clear_text or environment.get("FLEET_API_CLEAR_TEXT") == "1"
    if url is None and home is None:
        url = environment.get("FLEET_URL") or None
        home = _path(environment, "FLEET_HOME")
    if url is None and home is None:
        raise NoControllerError("no controller is named", remedy=REMEDY)
    if url is None and home is not None:
        from controller.app.home import read_home

        found = read_home(home)
        token = _read_token(token_file or found.token_file)
        return Target(
            url=found.api_url,
            token=token,
            ca_file=ca_file or found.ca_file,
            clear_text=clear_text or found.clear_text,
        )
    url = (url or "").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise NoControllerError(f"{url!r} is not an address", remedy="write https://HOST:PORT")
    token = environment.get("FLEET_TOKEN", "")
    if token_file is not None:
        token = _read_token(token_file)
    if not token:
        raise NoControllerError(f"no token for {url}", remedy=REMEDY)
    if not _is_word(token):
        raise NoControllerError(
            "FLEET_TOKEN holds a space or a character that no token has",
            remedy="set it to the content of the controller's file api.token",
        )
    if not _is_word(url):
        raise NoControllerError(
            f"{url!r} is not an address: it holds a space or a character that no address has",
            remedy="write https://HOST:PORT",
        )
    return Target(url=url, token=token, ca_file=ca_file, clear_text=clear_text)


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


def _is_word(text: str) -> bool:
    """Tell whether a text may stand in the head of an HTTP request."""
    return text.isascii() and text.isprintable() and " " not in text


def _read_token(path: Path) -> str:
    """Read a secret.

    Raises:
        NoControllerError: It cannot be read, or holds none.
    """
    try:
        with open_file(path) as file:
            token = file.read(MAX_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = (exc.strerror or str(exc)).lower() if isinstance(exc, OSError) else "not text"
        raise NoControllerError(
            f"cannot read the token file {path}: {reason}",
            remedy="run as its owner, or name another with --token-file",
        ) from exc
    if not token or not token.isascii() or not token.isprintable():
        raise NoControllerError(
            f"the token file {path} holds no token",
            remedy="name the controller's file api.token with --token-file",
        )
    return token


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that checks certificates against one authority, or those of the system.

    Raises:
        NoControllerError: The file cannot be read or holds no certificate.
    """
    import ssl  # slow, and `fleet --help` needs none

    try:
        if ca_file is not None:
            open_file(ca_file).close()  # OpenSSL would wait for the other end of a named pipe
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as exc:
        is_content = isinstance(exc, ssl.SSLError)
        reason = "it holds no certificate" if is_content else str(exc.strerror or exc).lower()
        raise NoControllerError(
            f"cannot use the CA file {ca_file}: {reason}",
            remedy="name the PEM file of the authority with --ca-file FILE (or FLEET_CA_FILE)",
        ) from exc
