"""Paths in a package, as documents from outside name them."""

from __future__ import annotations

from pathlib import PurePosixPath

from wire.errors import WireFormatError


def safe_path(path: str) -> str:
    """Return a package path if it is relative, plain and stays inside the package.

    Args:
        path: As written in a document.

    Returns:
        The same path.

    Raises:
        WireFormatError: Absolute, empty, with `.`/`..` or empty parts, a backslash or control
            characters.
    """
    parts = path.split("/")
    pure = PurePosixPath(path)
    bad = (
        pure.is_absolute()
        or any(part in {"", ".", ".."} for part in parts)
        or "\\" in path
        or any(ord(char) < ord(" ") for char in path)
        or len(path) > 255  # noqa: PLR2004 - NAME_MAX of the usual file systems
    )
    if bad:
        raise WireFormatError(f"unsafe path in the package: {path!r}")
    return path
