"""Makes the directory of a package: it is either complete or missing.

Rules:
- Only a package is overwritten, and only if the user asks for it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packager.errors import PackageError
from packager.files import FOLDER_MODE
from wire.package.manifest import (
    MANIFEST_FILE,
)

ROOM: Final = "name a directory that can be written and has room"


def check_output(output: Path, *, force: bool) -> None:
    """Refuse an output that must not be overwritten.

    Args:
        output: Where a package is to be written.
        force: Whether an existing package may be replaced.

    Raises:
        PackageError: It exists, is not empty, and is not a package or may not be replaced.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / MANIFEST_FILE).is_file():
        raise PackageError(f"{output} exists and is not a package", remedy="name another directory")
    if not force:
        raise PackageError(f"{output} exists already", remedy="name another, or add --force")


@contextlib.contextmanager
def staged(output: Path, *, force: bool) -> Iterator[Path]:
    """Make a directory beside the output that takes its place when the `with` block ends well.

    Args:
        output: Where a package is to be written.
        force: Replace an existing package.

    Yields:
        The directory; after a fault nothing of it is left.

    Raises:
        PackageError: The output exists or cannot be written.
    """
    check_output(output, force=force)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as exc:
        raise PackageError(
            f"{output.parent} cannot be written: {exc.strerror}", remedy=ROOM
        ) from exc
    try:
        staging.chmod(FOLDER_MODE)
        yield staging
        _replace(staging, output)
    except OSError as exc:
        raise PackageError(
            f"{output} cannot be written: {exc.strerror or exc}", remedy=ROOM
        ) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, output: Path) -> None:
    """Move a finished directory to its place; an existing one is moved aside first, then removed.

    Raises:
        OSError: It cannot be moved; the existing directory is back in its place.
    """
    if not output.exists():
        staging.rename(output)
        return
    old = staging.with_name(f"{staging.name}-old")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old)
