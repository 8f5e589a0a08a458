"""The secrets and keys that the controller's settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from controller.config import ControllerConfig
from controller.errors import SettingsError
from controller.named_files import check_private, read_secret, read_small, renaming
from wire.errors import SignatureError, WireFormatError

if TYPE_CHECKING:
    from wire.trust.envelope import SigningKey
    from wire.trust.root import TrustRoot


MIN_API_TOKEN_CHARS = 16


def read_api_token(config: ControllerConfig) -> str:
    """Return the secret of the HTTP API.

    Raises:
        SettingsError: It cannot be read or is too short to be one.
    """
    return _read_token(config.api.token_file, "the API token")


def read_metrics_token(config: ControllerConfig) -> str | None:
    """Return the secret with which metrics alone may be read; None if there is none.

    Raises:
        SettingsError: It cannot be read, is too short to be one, or others may read it.
    """
    path, what = config.prometheus.token_file, "the token for metrics"
    if path is None:
        return None
    token = _read_token(path, what)
    check_private(path, what)
    return token


def _read_token(path: str, what: str) -> str:
    """Return a secret that callers of the API show.

    Raises:
        SettingsError: It cannot be read or is too short to be one.
    """
    token = read_secret(path, what)
    if len(token) < MIN_API_TOKEN_CHARS or not token.isascii():
        raise SettingsError(
            f"{what} in {path} is shorter than {MIN_API_TOKEN_CHARS}",
            remedy="put 32 random characters there",
        )
    return token


def read_director_key(config: ControllerConfig) -> SigningKey:
    """Return the key that signs desired states.

    Raises:
        SettingsError: It cannot be read or is not a key.
    """
    from wire.trust.envelope import SigningKey  # a command that reads an address needs no keys

    path = Path(config.director_key_file)
    try:
        return SigningKey(read_small(path, "the director's key"))
    except SignatureError as exc:
        raise SettingsError(
            f"{path} is not a private key: {exc.message}", remedy=renaming("the director's key")
        ) from exc


def read_seed(path: str) -> bytes:
    """Return the secret bytes of a key with which the controller signs metadata.

    Raises:
        SettingsError: It cannot be read.
    """
    return read_small(Path(path), "a key of trusted metadata")


def read_trust(config: ControllerConfig, director: SigningKey) -> TrustRoot:
    """Return the trust root, and check that devices will trust this controller.

    Args:
        config: The settings.
        director: The key that signs desired states.

    Returns:
        The trust root.

    Raises:
        SettingsError: It cannot be read, or the director's key is not in it.
    """
    from wire.trust.root import trust_from_bytes

    path = Path(config.trust_file)
    try:
        trust = trust_from_bytes(read_small(path, "the trust root"))
        believed = director.public_key in trust.director.public_keys()
    except WireFormatError as exc:
        raise SettingsError(f"{path}: {exc.message}", remedy=renaming("the trust root")) from exc
    if not believed or trust.director.threshold != 1:
        raise SettingsError(
            f"no device would trust this controller: {path} does not allow its key to sign alone",
            remedy="use the director key that belongs to this trust root",
        )
    return trust
