"""Signing keys as files: 32 secret bytes that only their owner may read.

Rules:
- A key that others can read is refused and not repaired, because others may already know it.
- No secret byte is ever printed or put into an error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from packager.errors import KeyFileError
from wire.files import PRIVATE, open_file, write_new
from wire.trust.envelope import SEED_BYTES, SigningKey

NAME_A_KEY: Final = "name a key of `fleet key generate`"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def generate_key(path: Path) -> SigningKey:
    """Make a new key and store its seed.

    Args:
        path: The file to make; it must not exist.

    Returns:
        The key.

    Raises:
        KeyFileError: The file exists or cannot be written.
    """
    key, seed = SigningKey.generate()
    write_key(path, seed)
    return key


def load_key(path: Path) -> SigningKey:
    """Read a key.

    Args:
        path: The file.

    Returns:
        The key.

    Raises:
        KeyFileError: Missing, not a plain file, readable by group or others, or not a key.
    """
    seed, mode = read_key(path, SEED_BYTES + 1)
    if len(seed) != SEED_BYTES:
        raise KeyFileError(f"{path} is not a signing key of {SEED_BYTES} bytes", remedy=NAME_A_KEY)
    check_private(path, mode)
    return SigningKey(seed)


def write_key(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read.

    Args:
        path: The file to make; it must not exist.
        content: The secret.

    Raises:
        KeyFileError: The file exists or cannot be written.
    """
    try:
        write_new(path, content, mode=PRIVATE)
    except FileExistsError as exc:
        raise KeyFileError(
            f"{path} exists already",
            remedy="name another file; this command never overwrites a key",
        ) from exc
    except OSError as exc:
        raise KeyFileError(
            f"{path} cannot be written: {exc.strerror}", remedy="name a file in another directory"
        ) from exc


def read_key(path: Path, most_bytes: int) -> tuple[bytes, int]:
    """Read the file of a key, secret or public.

    Args:
        path: The file.
        most_bytes: How much of it is read.

    Returns:
        Its content and its mode.

    Raises:
        KeyFileError: Missing, or not a plain file.
    """
    try:
        with open_file(path) as stream:
            status = os.fstat(stream.fileno())
            content = stream.read(most_bytes)
    except OSError as exc:
        raise KeyFileError(f"{path} cannot be read: {exc.strerror}", remedy=NAME_A_KEY) from exc
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path} is not a plain file", remedy=NAME_A_KEY)
    return content, stat.S_IMODE(status.st_mode)


def check_private(path: Path, mode: int) -> None:
    """Insist that only its owner can read the file of a secret key.

    Args:
        path: The file.
        mode: Its mode.

    Raises:
        KeyFileError: Others can.
    """
    if mode & _OTHERS:
        raise KeyFileError(
            f"{path} can be read by others (mode {mode:04o})",
            remedy=f"replace the key, or run: chmod 600 {path}",
        )
