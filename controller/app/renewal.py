"""Makes a new certificate for the local broker, and the authority that signs it if there is none.

Rules:
- An authority that exists is never replaced: every device knows it.
- The certificate and its key are one file. It is replaced at once, and only if clients will accept
  the new one.
- A certificate that the operator brought is left alone.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.app.home import CA_FILE, CA_KEY_FILE, CONFIG_FILE, offline_directory
from controller.broker.certificates import (
    Authority,
    ServerFiles,
    check,
    issue,
    make_authority,
    names_for,
)
from controller.broker.errors import CertificateError
from controller.config import BrokerConfig, connectable, load_config
from wire.files import PRIVATE, PUBLIC, open_file, write_atomic, write_new

KEY_REMEDY: Final = "bring its key back, and name it with --ca-key FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """What was made."""

    names: tuple[str, ...]
    expires_at_s: float
    new_authority: Path | None
    """The certificate of a new authority, which the devices need; None if it existed."""

    is_used: bool
    """Whether the settings say that the broker uses it."""


def renew(directory: Path, ca_key: Path | None = None) -> Renewed:
    """Make a new certificate for the local broker.

    Args:
        directory: The controller's data directory.
        ca_key: The authority's key; None means in the directory of offline keys.

    Returns:
        What was made.

    Raises:
        CertificateError: The key is missing or another authority's, the certificate is the
            operator's own, or a file cannot be read or written.
        SettingsError: The settings cannot be read.
    """
    directory = directory.absolute()
    broker = load_config(directory / CONFIG_FILE).broker
    cert_file = Path(broker.server_cert_file)
    if broker.server_key_file is not None or cert_file != _own_file(directory):
        raise CertificateError(
            f"{cert_file} is a certificate of your own, which broker.server_cert_file names",
            remedy="renew it where it came from, and start the broker again",
        )
    ca_file = directory / CA_FILE if broker.ca_file is None else Path(broker.ca_file)
    key_file = ca_key or offline_directory(directory) / CA_KEY_FILE
    is_new = not ca_file.exists()
    try:
        authority = _new_authority(ca_file, key_file) if is_new else _read(ca_file, key_file)
        names = names_for(broker.host, broker.names)
        expires_at_s = _replace(cert_file, ca_file, authority, names, connectable(broker.host))
    except OSError as exc:
        raise CertificateError(
            f"cannot write {exc.filename}: {(exc.strerror or str(exc)).lower()}",
            remedy="run as the owner of the directory",
        ) from exc
    return Renewed(
        names=names,
        expires_at_s=expires_at_s,
        new_authority=ca_file if is_new else None,
        is_used=broker.ca_file is not None,
    )


def _own_file(directory: Path) -> Path:
    return directory / BrokerConfig().server_cert_file


def _new_authority(ca_file: Path, key_file: Path) -> Authority:
    """Make an authority; its key is on disk first.

    Raises:
        CertificateError: There is a key already, whose authority is not here.
    """
    if key_file.exists():
        raise CertificateError(
            f"{key_file} exists, but its authority {ca_file} does not",
            remedy=f"restore {ca_file.name}; or, for a new authority, remove the key",
        )
    key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = make_authority(key_file.parent)
    write_new(key_file, authority.key, mode=PRIVATE)
    write_new(ca_file, authority.certificate, mode=PUBLIC)
    return authority


def _read(ca_file: Path, key_file: Path) -> Authority:
    """Read the authority.

    Raises:
        CertificateError: A part of it cannot be read, or the key is another authority's.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for path in (ca_file, key_file):
            open_file(path).close()  # which says what is wrong with one; OpenSSL does not
        # Without a password OpenSSL asks for one on the terminal.
        context.load_cert_chain(ca_file, key_file, password="")
        return Authority(certificate=ca_file.read_bytes(), key=key_file.read_bytes())
    except ssl.SSLError as exc:
        fault = f"{key_file} is not the key of the authority {ca_file}"
        if exc.reason != "KEY_VALUES_MISMATCH":
            fault = f"{ca_file} and {key_file} are not a certificate and its key in PEM form"
        raise CertificateError(fault, remedy=KEY_REMEDY) from exc
    except OSError as exc:
        raise CertificateError(
            f"cannot read the authority's {exc.filename}: {(exc.strerror or str(exc)).lower()}",
            remedy=KEY_REMEDY,
        ) from exc


def _replace(
    cert_file: Path, ca_file: Path, authority: Authority, names: tuple[str, ...], host: str
) -> float:
    """Put a new certificate in the place of the old one, if clients will accept it.

    Returns:
        When it expires.

    Raises:
        CertificateError: They will not.
        OSError: It cannot be written.
    """
    cert_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cert_file.parent) as name:
        tried = Path(name) / cert_file.name
        write_new(tried, issue(authority, names, Path(name)), mode=PRIVATE)
        expires_at_s = check(ServerFiles(cert_file=tried, key_file=tried), ca_file, host)
        write_atomic(cert_file, tried.read_bytes())
    return expires_at_s
