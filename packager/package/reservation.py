"""Keeps the place of a package for one build, so that a second one is refused before its work.

Rules:
- The lock is that of the kernel: a build that was killed holds none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from packager.errors import PackageError
from packager.package.staging import check_output
from wire.files import PRIVATE


@contextlib.contextmanager
def reserved(output: Path, *, force: bool) -> Iterator[None]:
    """Keep an output for as long as the `with` block lasts.

    Args:
        output: Where a package is to be written.
        force: Whether an existing package may be replaced.

    Raises:
        PackageError: It exists, cannot be written, or another build is about to write it.
    """
    check_output(output, force=force)
    lock = output.parent / f".{output.name}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, flags, PRIVATE)
    except OSError as exc:
        raise PackageError(
            f"{output.parent} cannot be written: {exc.strerror}",
            remedy="name another directory with --output",
        ) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        raise PackageError(
            f"another build is writing {output}", remedy="name another directory, or wait for it"
        ) from exc
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
