"""Finds the hooks, and refuses a directory in which somebody else could have put one.

Rules:
- The directory holds hooks and nothing else: a misspelt name must not become an ignored veto.
- Each hook, the directory and all directories above it belong to root or to the agent's user, and
  nobody else may write to them. None of them is a link. Above the directory a sticky bit is enough:
  there nobody renames what is not his.
- A device has few hooks; with more than `MAX_HOOKS` files something is wrong.
"""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import Final

from agent.errors import HookFilesError
from agent.install.hooks.names import SHAPE, Hook, parse_name

MAX_HOOKS: Final = 64
REMEDY: Final = "mend or remove it; docs/hooks.md says what may be there"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def read_hooks(directory: Path) -> tuple[Hook, ...]:
    """Return the hooks of a directory.

    Args:
        directory: The directory, absolute.

    Returns:
        The hooks, in no order.

    Raises:
        HookFilesError: It cannot be read, holds what is no hook, or others could write to it.
    """
    for above in reversed(directory.parents):
        _check(above, _looked(above), is_above=True)
    _check(directory, _looked(directory))
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_HOOKS + 1))
    except OSError as exc:
        raise HookFilesError(_unread(directory, exc), remedy=REMEDY) from exc
    if len(names) > MAX_HOOKS:
        raise HookFilesError(f"{_shown(directory)} has more than {MAX_HOOKS} files", remedy=REMEDY)
    return tuple(_hook(directory / name) for name in names)


def _hook(path: Path) -> Hook:
    hook, looked = parse_name(path.name), _looked(path)
    if hook is None:
        raise _refused(path, f"its name is not of the form {SHAPE}")
    if not stat.S_ISREG(looked.st_mode):
        raise _refused(path, "it is not a file")
    _check_owner(path, looked)
    if not os.access(path, os.X_OK):
        raise _refused(path, "the agent may not execute it")
    return hook


def _check(directory: Path, looked: os.stat_result, *, is_above: bool = False) -> None:
    if not stat.S_ISDIR(looked.st_mode):
        raise _refused(directory, "it is not a directory, or is a link to one")
    _check_owner(directory, looked, sticky=is_above)


def _check_owner(path: Path, looked: os.stat_result, *, sticky: bool = False) -> None:
    if looked.st_uid not in {0, os.geteuid()}:
        raise _refused(path, f"it belongs to user {looked.st_uid}, not to root or to the agent")
    if looked.st_mode & _OTHERS_WRITE and not (sticky and looked.st_mode & stat.S_ISVTX):
        raise _refused(path, "its group or others may write to it")


def _looked(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as exc:
        raise HookFilesError(_unread(path, exc), remedy=REMEDY) from exc


def _refused(path: Path, why: str) -> HookFilesError:
    return HookFilesError(f"no hook runs because of {_shown(path)}: {why}", remedy=REMEDY)


def _unread(path: Path, exc: OSError) -> str:
    return f"the hooks cannot be read: {_shown(path)}: {(exc.strerror or str(exc)).lower()}"


def _shown(path: Path) -> str:
    r"""Return a path as text that any message can hold, with `\xe9` for such a byte."""
    return os.fsencode(path).decode(errors="backslashreplace")
