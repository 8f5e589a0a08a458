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
    try:
        write_new(path, seed, mode=PRIVATE)
    except FileExistsError as exc:
        raise KeyFileError(
            f"{path} exists already",
            remedy="name another file; this command never overwrites a key",
        ) from exc
    except OSError as exc:
        raise KeyFileError(
            f"{path} cannot be written: {exc.strerror}", remedy="name a file in another directory"
        ) from exc
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
    try:
        with open_file(path) as stream:
            status = os.fstat(stream.fileno())
            seed = stream.read(SEED_BYTES + 1)
    except OSError as exc:
        raise KeyFileError(
            f"{path} cannot be read: {exc.strerror}", remedy="name a key of `fleet key generate`"
        ) from exc
    if not stat.S_ISREG(status.st_mode) or len(seed) != SEED_BYTES:
        raise KeyFileError(
            f"{path} is not a signing key of {SEED_BYTES} bytes",
            remedy="name a key of `fleet key generate`",
        )
    if status.st_mode & _OTHERS:
        raise KeyFileError(
            f"{path} can be read by others (mode {stat.S_IMODE(status.st_mode):04o})",
            remedy=f"replace the key, or run: chmod 600 {path}",
        )
    return SigningKey(seed)
