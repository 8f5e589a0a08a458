"""Lets root do what the owner of a directory may do, and no more.

Root may start the broker of somebody else, who puts into his directory what he likes: links to
files of root, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def owner_of(directory: Path) -> Iterator[None]:
    """Give up the rights of root for a while, where a directory, or a link to it, is another's.

    It concerns all threads of the process.

    Args:
        directory: It need not exist.
    """
    owner = directory.lstat() if os.path.lexists(directory) else None
    if owner is None or os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
