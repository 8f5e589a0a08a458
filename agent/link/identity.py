"""The identity of this device: its own key, which never leaves it, and how it logs in.

Rules:
- The key lies in a file that only the agent can read, and its secrets are in no log.
- The password and the client identifier follow from the key. So nothing but the key must survive:
  a damaged file of credentials is written anew.
- The key is named beside the credentials: a damaged one is told as that, not as a stranger's.
- With a controller that gives certificates the device logs in with one, by a key for TLS
  (`agent.link.tls_key`). The client identifier stays: nobody can guess it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import msgspec

from agent.errors import ConfigError, storage_faults
from agent.link.tls_key import TlsKey
from wire.certificates import DeviceCertificate
from wire.codec import from_json, sha256_hex, to_json
from wire.enrolment import client_id
from wire.errors import WireFormatError
from wire.files import read_regular, write_atomic
from wire.trust.envelope import SEED_BYTES, SigningKey

KEY_FILE = "device.key"
CREDENTIALS_FILE = "credentials.json"
MAX_BYTES = 64 * 1024


class ShownCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate that a device shows to the broker, and where."""

    cert_file: Path
    key_file: Path
    port: int


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account at the broker, with the client identifier to which it is bound."""

    client_id: str
    username: str
    password: str | None
    """None if a certificate replaces it."""

    certificate: ShownCertificate | None = None
    """The certificate that the controller gave the device; None for a password, and for a
    certificate that the configuration names."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a device knows of the certificate that it has."""

    port: int
    begins_at_s: float
    ends_at_s: float


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What this device knows of its enrolment."""

    device: str
    password: str = ""
    """The random password of a device that enrolled when passwords did not follow from the key;
    its client identifier is its name. Empty for the password that follows from the key."""

    enrolled: bool = False
    """Whether the controller has accepted the device."""

    keyid: str = ""
    """Name of the key with which it enrolled; empty for older agents."""

    certificate: Held | msgspec.UnsetType = msgspec.UNSET
    """Of the certificate beside it; unset for a device that logs in with a password."""

    check: str = ""
    """SHA-256 over the other fields; empty for older agents."""

    def sealed(self) -> Credentials:
        """Return them with their check."""
        plain = msgspec.structs.replace(self, check="")
        return msgspec.structs.replace(self, check=sha256_hex(to_json(plain)))

    @property
    def is_whole(self) -> bool:
        """Whether they are as they were written, as far as that can be told."""
        return self == self.sealed() or (not self.check and bool(self.password))


class Identity:
    """The key and the account of this device.

    Args:
        directory: Where they are kept; missing files are made.
        device: The identifier from the configuration.
        tls_key: The key with which it speaks TLS.

    Raises:
        ConfigError: The key is damaged, or the files belong to another device.
        StorageError: They cannot be read or written.
    """

    def __init__(self, directory: Path, device: str, tls_key: TlsKey | None = None) -> None:
        self.tls_key = tls_key or TlsKey(directory)
        self._credentials_path = directory / CREDENTIALS_FILE
        self._seed = _load_seed(directory / KEY_FILE)
        self.key = SigningKey(self._seed)
        self.credentials = _load_credentials(self._credentials_path, device)
        _check_key(self.credentials, self.key)

    @property
    def account(self) -> Account:
        """The account that the device has, if it is enrolled."""
        held = self.credentials.certificate
        if isinstance(held, Held):
            own, key = self.own_account, self.tls_key
            shown = ShownCertificate(cert_file=key.cert_file, key_file=key.key_file, port=held.port)
            return msgspec.structs.replace(own, password=None, certificate=shown)
        if self.credentials.password:
            name = self.credentials.device
            return Account(client_id=name, username=name, password=self.credentials.password)
        return self.own_account

    @property
    def own_account(self) -> Account:
        """The account for which the device asks when it enrols; always the same for one key."""
        name = self.credentials.device
        password = base64.urlsafe_b64encode(self._derived("password")).decode().rstrip("=")
        secret = self._derived("client identifier").hex()[:32]
        return Account(client_id=client_id(name, secret), username=name, password=password)

    def confirm(self, certificate: DeviceCertificate | msgspec.UnsetType = msgspec.UNSET) -> None:
        """Save that the controller has accepted this device.

        Args:
            certificate: What it logs in with from now on; unset for the password of `own_account`.

        Raises:
            CertificateError: The certificate is not of this device's key.
            StorageError: It cannot be written.
        """
        held: Held | msgspec.UnsetType = msgspec.UNSET
        if isinstance(certificate, DeviceCertificate):
            self.tls_key.save(certificate.pem)
            held = Held(
                port=certificate.port,
                begins_at_s=certificate.begins_at_s,
                ends_at_s=certificate.ends_at_s,
            )
        made = Credentials(
            device=self.credentials.device, enrolled=True, keyid=self.key.keyid, certificate=held
        )
        self.credentials = _save(self._credentials_path, made)

    def _derived(self, what: str) -> bytes:
        text = f"edgefleet-broker-{what}-v1\n{self.credentials.device}"
        return hmac.digest(self._seed, text.encode(), hashlib.sha256)


def _load_seed(path: Path) -> bytes:
    with storage_faults("cannot store the device's key"):
        if not path.exists():
            _key, seed = SigningKey.generate()
            write_atomic(path, seed)
            return seed
    with storage_faults(f"cannot read {path.name}"):
        seed = read_regular(path, SEED_BYTES + 1)
    if len(seed) != SEED_BYTES:
        length = len(seed) if len(seed) < SEED_BYTES else f"more than {SEED_BYTES}"
        raise ConfigError(
            f"{path.name} has {length} bytes, not {SEED_BYTES}",
            remedy="remove it and enrol the device again",
        )
    return seed


def _load_credentials(path: Path, device: str) -> Credentials:
    new = Credentials(device=device)
    with storage_faults("cannot store the credentials"):
        if not path.is_file():  # what else stands there is replaced
            return _save(path, new)
        data = read_regular(path, MAX_BYTES + 1)
    try:
        credentials = from_json(data, Credentials, limit_bytes=MAX_BYTES)
    except WireFormatError:
        return _save(path, new)
    if not credentials.is_whole:
        return _save(path, new)
    if credentials.device != device:
        raise ConfigError(
            f"{path.name} belongs to {credentials.device}, but the configuration names {device}",
            remedy="use another state_dir for another device",
        )
    return credentials


def _save(path: Path, credentials: Credentials) -> Credentials:
    sealed = credentials.sealed()
    with storage_faults("cannot write the credentials"):
        write_atomic(path, to_json(sealed))
    return sealed


def _check_key(credentials: Credentials, key: SigningKey) -> None:
    """Refuse a key that is not the one with which the device enrolled.

    Raises:
        ConfigError: It is another one.
    """
    if credentials.keyid not in {"", key.keyid}:
        raise ConfigError(
            f"{KEY_FILE} is not the key with which this device enrolled: it is damaged or replaced",
            remedy=f"restore it; or remove it and {CREDENTIALS_FILE}, decommission and readmit the "
            "device with `fleet device`, and enrol it with a new token",
        )
