"""Lets root do what the owner of a directory may do, and no more.

Root may start the broker of somebody else, who puts into his directory what he likes: links to
files of root, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from controller.broker.errors import BrokerDirectoryError


@contextlib.contextmanager
def owner_of(directory: Path) -> Iterator[None]:
    """Give up the rights of root for a while, where a directory, or a link to it, is another's.

    It concerns all threads of the process.

    Args:
        directory: It need not exist.

    Raises:
        BrokerDirectoryError: Root may not change users here.
    """
    owner = directory.lstat() if os.path.lexists(directory) else None
    if owner is None or os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    try:
        try:
            os.setgroups([])
            os.setegid(owner.st_gid)
            os.seteuid(owner.st_uid)
        except OSError as exc:  # as in a container that has no right to change users
            raise BrokerDirectoryError(
                f"cannot act as the owner of {directory}: {(exc.strerror or str(exc)).lower()}",
                remedy=f"run as its owner, or make it root's: chown -R 0:0 {directory}",
            ) from exc
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        with contextlib.suppress(PermissionError):  # then they were never given up
            os.setgroups(groups)
