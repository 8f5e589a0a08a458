"""The files of a variant as they were signed: compared before it is loaded, and again after.

Runs in the worker process: so what is compared is what this process loads, and a slow disk or a
large model holds up no thread of the supervisor.

Rules:
- Every file that the variant needs is hashed before any of it is loaded.
- A runtime opens files by their paths, so they cannot be loaded from what was hashed. In place of
  that each file must be the same one afterwards, and not have been touched: a change of content
  moves the time of the last change (`ctime`), which no program sets back without setting the clock.
- A file that was not touched since an earlier check is hashed all the same: storage that loses
  bits moves no times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.errors import storage_faults
from agent.package_files import SignedFile, open_inside, sha256_of
from wire.errors import IntegrityError

REMEDY = "the agent fetches what is damaged from the controller"


class _Identity(NamedTuple):
    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class SignedFiles:
    """Files that are what was signed.

    Args:
        package: The package's directory.
        files: What was signed of each.
        release: Name and version, for faults.

    Raises:
        IntegrityError: A file is missing, is a link, or differs from what was signed.
        StorageError: A file cannot be read.
    """

    def __init__(self, package: Path, files: Sequence[SignedFile], release: str) -> None:
        self._package = package
        self._release = release
        self._known = {file.path: self._hashed(file) for file in files}

    def check_untouched(self) -> None:
        """Check that what was loaded meanwhile is what was hashed.

        Raises:
            IntegrityError: A file was changed or replaced.
            StorageError: A file cannot be opened.
        """
        for path, known in self._known.items():
            with (
                storage_faults(f"cannot read {path}"),
                open_inside(self._package, path) as file,
            ):
                if _identity(file.fileno()) != known:
                    raise IntegrityError(
                        f"{path} of {self._release} was changed while it was loaded", remedy=REMEDY
                    )

    def _hashed(self, signed: SignedFile) -> _Identity:
        with (
            storage_faults(f"cannot read {signed.path}"),
            open_inside(self._package, signed.path) as file,
        ):
            known = _identity(file.fileno())
            if known.size_bytes != signed.size_bytes or sha256_of(file) != signed.sha256:
                raise IntegrityError(
                    f"{signed.path} of {self._release} differs from the signed file", remedy=REMEDY
                )
            return known


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return _Identity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )
