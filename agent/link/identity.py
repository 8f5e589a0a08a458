"""The identity of this device: its own key, which never leaves it, and its broker password.

Rules:
- Secrets lie in files that only the agent can read, and in no log.
- The password is on disk before the device sends it to the controller: so a power cut during
  enrolment cannot leave a device that the fleet knows but that has lost its password.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from agent.errors import ConfigError, storage_faults
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import write_atomic
from wire.trust.envelope import SEED_BYTES, SigningKey

KEY_FILE = "device.key"
CREDENTIALS_FILE = "credentials.json"
PASSWORD_BYTES = 32


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The device's login at the broker."""

    device: str
    password: str
    enrolled: bool = False
    """Whether the controller has accepted them."""


class Identity:
    """The key and the credentials of this device.

    Args:
        directory: Where they are kept; missing files are made.
        device: The identifier from the configuration.

    Raises:
        ConfigError: A file is damaged or belongs to another device.
        StorageError: They cannot be read or written.
    """

    def __init__(self, directory: Path, device: str) -> None:
        self._credentials_path = directory / CREDENTIALS_FILE
        self.key = _load_key(directory / KEY_FILE)
        self.credentials = _load_credentials(self._credentials_path, device)

    def confirm(self) -> None:
        """Save that the controller has accepted this device.

        Raises:
            StorageError: It cannot be written.
        """
        self.credentials = msgspec.structs.replace(self.credentials, enrolled=True)
        with storage_faults("cannot write the credentials"):
            write_atomic(self._credentials_path, to_json(self.credentials))


def _load_key(path: Path) -> SigningKey:
    with storage_faults("cannot store the device's key"):
        if not path.exists():
            key, seed = SigningKey.generate()
            write_atomic(path, seed)
            return key
        seed = path.read_bytes()
    if len(seed) != SEED_BYTES:
        raise ConfigError(
            f"{path.name} has {len(seed)} bytes, not {SEED_BYTES}",
            remedy="remove it and enrol the device again",
        )
    return SigningKey(seed)


def _load_credentials(path: Path, device: str) -> Credentials:
    with storage_faults("cannot store the credentials"):
        if not path.exists():
            made = Credentials(device=device, password=secrets.token_urlsafe(PASSWORD_BYTES))
            write_atomic(path, to_json(made))
            return made
        data = path.read_bytes()
    try:
        credentials = from_json(data, Credentials, limit_bytes=64 * 1024)
    except WireFormatError:
        # The text of the error could hold a part of the secret.
        raise ConfigError(
            f"{path.name} is damaged", remedy="remove it and enrol the device again"
        ) from None
    if credentials.device != device:
        raise ConfigError(
            f"{path.name} belongs to {credentials.device}, but the configuration names {device}",
            remedy="use another state_dir for another device",
        )
    return credentials
