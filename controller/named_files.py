"""The files that the controller's settings name, and what helps if one cannot be used."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from controller.errors import SettingsError
from wire.files import open_file

MAX_FILE_BYTES = 1024 * 1024


THE_SETTINGS = "the settings"


NAMED_BY = {
    "the API token": "api.token_file",
    "the broker password": "broker.password_file",
    "the director's key": "director_key_file",
    "the trust root": "trust_file",
    "a key of trusted metadata": "trust",
    "the account of a store": "downloads.places",
    "the secret of a webhook": "alerts.webhooks",
    "the devices' authority": "device_certificates.ca_file",
    "the key of the devices' authority": "device_certificates.key_file",
    "the token for metrics": "prometheus.token_file",
    "the headers for the collector": "otlp.headers_file",
    "the password of the telemetry log": "telemetry.log.password_file",
}
"""Which setting names a file, for errors."""


def read_small(path: Path, what: str) -> bytes:
    """Read a small file that the settings name.

    Args:
        path: The file.
        what: What it holds, for errors.

    Returns:
        Its content.

    Raises:
        SettingsError: It cannot be read or is too large.
    """
    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise SettingsError(
            f"cannot read {what} in {path}: {(exc.strerror or str(exc)).lower()}",
            remedy=_remedy(exc, what),
        ) from exc
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(
            f"{what} in {path} is larger than {MAX_FILE_BYTES} bytes", remedy=renaming(what)
        )
    return data


def read_secret(path: str, what: str) -> str:
    """Return the only line of a secret file.

    Args:
        path: The file.
        what: What it holds, for errors.

    Returns:
        The secret.

    Raises:
        SettingsError: It cannot be read or is empty.
    """
    text = read_secret_text(path, what)
    if not text or "\n" in text:
        raise SettingsError(f"{what} in {path} is not one line", remedy=renaming(what))
    return text


def check_private(path: str, what: str) -> None:
    """Refuse a secret file that others may read.

    Args:
        path: The file, which could be read.
        what: What it holds, for errors.

    Raises:
        SettingsError: They may.
    """
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116 - as the file was read
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SettingsError(
                f"{what} in {path} can be read by others", remedy=f"run: chmod 600 {path}"
            )


def read_secret_text(path: str, what: str) -> str:
    """Return the text of a secret file.

    Args:
        path: The file.
        what: What it holds, for errors.

    Returns:
        The text, without what is empty around it.

    Raises:
        SettingsError: It cannot be read or is not text.
    """
    try:
        return read_small(Path(path), what).decode().strip()
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{what} in {path} is not text", remedy=renaming(what)) from exc


def _remedy(exc: OSError, what: str) -> str:
    """Say what helps against a file that cannot be read."""
    if isinstance(exc, PermissionError):
        return "run as the owner of the controller's directory"
    if what == THE_SETTINGS:
        return "name the controller's directory; a new one is made with: fleet init DIR"
    return renaming(what)


def renaming(what: str) -> str:
    """Say which setting names a file that cannot be used."""
    if what == THE_SETTINGS:
        return "write them anew; `fleet init DIR` shows how they look"
    return f"bring the file back, or correct {NAMED_BY.get(what, 'its path')} in controller.toml"
