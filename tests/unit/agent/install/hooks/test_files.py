"""A directory in which somebody else could have put a hook is refused, and so is what is none."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import HookFilesError
from agent.install.hooks.files import MAX_HOOKS, read_hooks
from tests.simulators.hooks import HookDirectory

NAME = "Switching_Enter_10_camera"
STRANGER = 65_533


@pytest.fixture
def hooks(tmp_path: Path) -> HookDirectory:
    hooks = HookDirectory(tmp_path / "above")
    hooks.add(NAME, "Probing_Leave_00")
    return hooks


def test_hooks_are_found(hooks: HookDirectory) -> None:
    assert {hook.name for hook in read_hooks(hooks.path)} == {NAME, "Probing_Leave_00"}


def test_an_empty_directory_has_none(tmp_path: Path) -> None:
    assert read_hooks(HookDirectory(tmp_path).path) == ()


def linked(path: Path) -> None:
    real = path.parent.parent / "real"
    path.rename(real)
    path.symlink_to(real)


def add(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).touch(0o755)


def add_latin_1(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path) + b"/caf\xe9")).touch(0o755)


def make_fifo(path: Path) -> None:
    (path / NAME).unlink()
    os.mkfifo(path / NAME, 0o700)


def bind(path: Path) -> None:
    (path / NAME).unlink()
    descriptor = os.open(path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{descriptor}/{NAME}")
    os.close(descriptor)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda path: (path / NAME).chmod(0o775), f"{NAME}: its group or others may write"),
        (lambda path: (path / NAME).chmod(0o757), f"{NAME}: its group or others may write"),
        (lambda path: (path / NAME).chmod(0o644), f"{NAME}: the agent may not execute it"),
        (lambda path: path.chmod(0o775), "hooks.d: its group or others may write"),
        (lambda path: path.chmod(0o1777), "hooks.d: its group or others may write"),
        (lambda path: path.parent.chmod(0o777), "above: its group or others may write"),
        (linked, "hooks.d: it is not a directory, or is a link"),
        (lambda path: linked(path.parent), "above: it is not a directory, or is a link"),
        (lambda path: linked(path / NAME), f"{NAME}: it is not a file"),
        (make_fifo, f"{NAME}: it is not a file"),
        (bind, f"{NAME}: it is not a file"),
        (lambda path: (path / "Probing_Enter_00").mkdir(), "Probing_Enter_00: it is not a file"),
        (add("README"), "README: its name is not of the form <State>_"),
        (add("Swiching_Enter_00"), "Swiching_Enter_00: its name is not of the form"),
        (add(f"{NAME}.bak"), f"{NAME}.bak: its name is not of the form"),
        (add_latin_1, r"caf\xe9: its name is not of the form"),
        (lambda path: path.rename(path.parent / "x"), "hooks.d: no such file or directory"),
    ],
)  # fmt: skip
def test_what_is_not_safe_or_no_hook_is_named(
    hooks: HookDirectory, spoil: Callable[[Path], object], fault: str
) -> None:
    spoil(hooks.path)
    with pytest.raises(HookFilesError, match=re.escape(fault)):
        read_hooks(hooks.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("which", [NAME, ".", ".."])
def test_what_belongs_to_somebody_else_is_refused(hooks: HookDirectory, which: str) -> None:
    os.chown(hooks.path / which, STRANGER, STRANGER)
    with pytest.raises(HookFilesError, match=f"it belongs to user {STRANGER}, not to root or"):
        read_hooks(hooks.path)


def test_a_sticky_directory_above_is_as_good_as_a_private_one(hooks: HookDirectory) -> None:
    hooks.path.parent.chmod(0o1777)
    assert len(read_hooks(hooks.path)) == 2


def test_the_number_of_hooks_is_bounded(tmp_path: Path) -> None:
    hooks = HookDirectory(tmp_path)
    hooks.add(*(f"Probing_Enter_{number:02}" for number in range(MAX_HOOKS)))
    assert len(read_hooks(hooks.path)) == MAX_HOOKS
    hooks.add("Staging_Enter_00")
    with pytest.raises(HookFilesError, match=f"has more than {MAX_HOOKS} files"):
        read_hooks(hooks.path)
