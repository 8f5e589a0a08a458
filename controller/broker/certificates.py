"""Certificates for the local broker: authorities of the fleet's own, and what one of them signs.

Rules:
- The devices get the authority's certificate once. The broker's certificate may be renewed as often
  as needed: the devices notice nothing.
- A certificate is tried before it is used: a handshake in memory, as a device makes it.
- The program `openssl` makes keys and certificates; nothing here encodes one.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.broker.errors import CertificateError

AUTHORITY_DAYS: Final = 20 * 365
"""Longer than a device lives: a new authority has to be carried to every device."""

SERVER_DAYS: Final = 5 * 365
"""A certificate that has expired stops the whole fleet at once, and its key does not leave the
machine."""

WARN_DAYS: Final = 60.0
SECONDS_PER_DAY: Final = 86_400.0
TIMEOUT_S: Final = 60.0
NEEDED_BYTES = 16 * 1024
HANDSHAKE_ROUNDS: Final = 10
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
ALWAYS_VALID_FOR: Final = ("localhost", "127.0.0.1", "::1")
"""The controller and the devices of a machine connect with a broker there."""

CONFIG: Final = """\
[req]
distinguished_name = subject
prompt = no
[subject]
CN = {subject}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""
INSTALL: Final = "install it: apt install openssl"
RENEW: Final = "make one with `fleet broker certificate`, or name yours as broker.server_cert_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Who signs the broker's certificate, or those of devices; both parts are PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """Files of a broker's certificate."""

    cert_file: Path
    key_file: Path


def make_authority(scratch: Path, kind: str = "authority") -> Authority:
    """Make a new authority.

    Args:
        scratch: A directory for temporary files, which only the owner may read.
        kind: What its name says that it is.

    Returns:
        The authority.

    Raises:
        CertificateError: There is no `openssl`, or it failed.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        # Two fleets' authorities have different names, or their certificates would be mistaken.
        config = _write_config(folder, f"edgefleet {kind} {secrets.token_hex(4)}", ())
        _openssl(
            "req", "-x509", "-new", "-sha256", *NEW_KEY, "-config", config,
            "-extensions", "authority", "-set_serial", _serial(), "-days", str(AUTHORITY_DAYS),
            "-keyout", folder / "key", "-out", folder / "certificate",
        )  # fmt: skip
        return Authority(
            certificate=(folder / "certificate").read_bytes(), key=(folder / "key").read_bytes()
        )


def issue(authority: Authority, names: Iterable[str], scratch: Path) -> bytes:
    """Make a broker's certificate with a new key.

    Args:
        authority: Who signs it.
        names: Names and addresses by which clients reach the broker.
        scratch: A directory for temporary files, which only the owner may read.

    Returns:
        Certificate and key, PEM, as one file: so both are replaced at once.

    Raises:
        CertificateError: There is no `openssl`, or it failed; the key is not the authority's; or a
            name is none.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        config = _write_config(folder, "edgefleet broker", names)
        (folder / "ca").write_bytes(authority.certificate)
        (folder / "ca.key").write_bytes(authority.key)
        _openssl(
            "req", "-new", "-sha256", *NEW_KEY, "-config", config,
            "-keyout", folder / "key", "-out", folder / "request",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-sha256", "-in", folder / "request", "-set_serial", _serial(),
            "-CA", folder / "ca", "-CAkey", folder / "ca.key", "-days", str(SERVER_DAYS),
            "-extfile", config, "-extensions", "server", "-out", folder / "certificate",
        )  # fmt: skip
        return (folder / "certificate").read_bytes() + (folder / "key").read_bytes()


def names_for(host: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return all that a certificate has to be valid for, each once.

    Args:
        host: Where the broker listens; if on all addresses, the machine's own names count.
        names: By which devices reach it, as the settings say.
    """
    own = (socket.gethostname(), socket.getfqdn()) if host in WILDCARDS else (host,)
    listening = [name for name in own if is_host(name)]
    return tuple(dict.fromkeys([*names, *listening, *ALWAYS_VALID_FOR]))


def is_host(host: str) -> bool:
    """Tell whether a text is an address, or can be a name in the domain name system."""
    return _is_address(host) or NAME.fullmatch(host) is not None


def check(files: ServerFiles, ca_file: Path, host: str) -> float:
    """Check that clients will accept a broker's certificate.

    Args:
        files: The certificate.
        ca_file: The authority's certificate, as the clients have it.
        host: By which the controller reaches the broker.

    Returns:
        When it expires, in seconds since 1970.

    Raises:
        CertificateError: A file cannot be read or is not what it should be, or a client refuses the
            certificate.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    reading: Path = files.cert_file
    try:
        # Without a password OpenSSL asks for one on the terminal.
        server.load_cert_chain(files.cert_file, files.key_file, password="")
        reading = ca_file
        client = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        reason = "not the PEM data that belongs there"  # OpenSSL's own words name its source files
        if not isinstance(exc, ssl.SSLError):
            reason = (exc.strerror or str(exc)).lower()
        raise CertificateError(f"cannot use {reading} for TLS: {reason}", remedy=RENEW) from exc
    try:
        return _handshake(client, server, host)
    except ssl.SSLCertVerificationError as exc:
        reason = exc.verify_message.rstrip(".").lower()
        raise CertificateError(
            f"clients would refuse the certificate {files.cert_file}: {reason}", remedy=RENEW
        ) from exc
    except ssl.SSLError as exc:
        raise CertificateError(
            f"no client could use the certificate {files.cert_file}: {exc.reason}", remedy=RENEW
        ) from exc


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> float:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(HANDSHAKE_ROUNDS):
        if all([_advance(near), _advance(far)]):
            break
    found = near.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))


def _advance(side: ssl.SSLObject) -> bool:
    """Do as much of a handshake as is possible now; tell whether it is done."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _write_config(folder: Path, subject: str, names: Iterable[str]) -> Path:
    entries = []
    for name in names:
        if not is_host(name):
            raise CertificateError(
                f"{name!r} is not a name or an address", remedy="write it without scheme and port"
            )
        entries.append(f"{'IP' if _is_address(name) else 'DNS'}:{name}")
    path = folder / "openssl.cnf"
    path.write_text(CONFIG.format(subject=subject, names=", ".join(entries)))
    return path


def _serial() -> str:
    return f"0x{secrets.randbits(127) | 1 << 126:x}"


def _openssl(*arguments: str | Path) -> None:
    """Run the program.

    Raises:
        CertificateError: There is none, or it failed.
    """
    program = shutil.which("openssl")
    if program is None:
        raise CertificateError(
            "the program openssl is not on this machine; it makes the certificates", remedy=INSTALL
        )
    try:
        done = subprocess.run(
            [program, *map(str, arguments)],
            capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, umask=0o077,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CertificateError(f"openssl cannot be run: {exc}", remedy=INSTALL) from exc
    if done.returncode != 0:
        # On a full disk it writes files that it cannot read, and says only that.
        for folder in {each.parent for each in arguments if isinstance(each, Path)}:
            if folder.is_dir() and shutil.disk_usage(folder).free < NEEDED_BYTES:
                raise CertificateError(
                    f"no space is left for certificates in {folder}", remedy="make room, and repeat"
                )
        # Its own words come last, before those of the library, which name its source files.
        said = [line for line in done.stderr.splitlines() if line and ":error:" not in line]
        raise CertificateError(f"openssl made no certificate: {said[-1] if said else 'no reason'}")
