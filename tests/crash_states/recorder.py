"""Turns the calls of a log, one after another, into operations on a directory.

Rules:
- Every call that names the directory, and that is not understood here, is an error.
- Paths through a link, relative paths, files without a name, and descriptors that went from one
  thread or process to another are refused: nothing that is recorded needs them.
- Bytes that the kernel copied are taken from what the source holds by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash_states.states import ROOT, Disk, Link, Names, Operation, Resize, Said, Sync, Write
from tests.crash_states.strace_log import Call, calls, hexadecimal

SAID: Final = b"said: "
"""How a line begins that tells what a program has promised."""


class RecordingError(Exception):
    """What the program did is not understood well enough to be replayed."""


@dataclass
class _Opened:
    """An open file of a thread: what a plain write needs to know."""

    inode: int | None
    """None for a file outside the directory."""

    path: str
    appends: bool
    at_bytes: int = 0


class Recorder:
    """Follows calls, one after another.

    Args:
        root: The directory.
        before: What is in it.
    """

    def __init__(self, root: Path, before: Disk) -> None:
        self._root = str(root)
        self._mark = hexadecimal(self._root)
        self._next = max((*before.files, *before.links, *before.folders)) + 1
        self._opened: dict[tuple[int, int], _Opened] = {}
        self._ended: list[int] = []
        """The line of the log at which each operation ended."""

        self.before = before.copy()
        self.before.links = dict(before.links)
        self.disk = before.copy()
        self.disk.links = dict(before.links)
        self.operations: list[Operation] = []

    def read(self, lines: Iterable[str]) -> None:
        """Follow a whole log.

        Raises:
            RecordingError: A call is not understood.
        """
        try:
            for call in calls(lines):
                self._follow(call)
        except (ValueError, KeyError, IndexError) as exc:
            raise RecordingError(f"the log of strace is not understood: {exc!r}") from exc

    def _follow(self, call: Call) -> None:
        if call.name in _OPENS:
            self._open(call)
        elif call.name == "lseek":
            self._seek(call)
        elif call.name in {"write", "writev"} and call.file(0).number == 1:
            self._say(call)
        elif self._concerns(call):
            handler = _HANDLERS.get(call.name)
            if handler is None:
                raise RecordingError(f"{call.name} is not understood: {call.arguments[:500]}")
            handler(self, call)
        elif call.name == "sync":
            self._sync(call, None, "everything")

    def _concerns(self, call: Call) -> bool:
        """Tell whether a call may change the directory.

        Raises:
            RecordingError: It names a path, and nobody knows which.
        """
        paths = call.paths() if call.name in _HANDLERS else []
        if not all(path.startswith("/") for path in paths):
            raise RecordingError(f"{call.name} has a relative path: {paths}")
        is_inside = any(self._relative(path) is not None for path in paths)
        return is_inside or (self._mark in call.arguments and not _is_neutral_map(call))

    def _add(self, operation: Operation, call: Call) -> None:
        self.operations.append(operation)
        self._ended.append(call.line)
        if isinstance(operation, Names | Write | Resize):
            self.disk.apply(operation)

    def _say(self, call: Call) -> None:
        for line in b"".join(call.texts).splitlines():
            if line.startswith(SAID):
                self._add(Said(line.removeprefix(SAID).decode()), call)

    # Names

    def _relative(self, path: str) -> str | None:
        """Return a path below the directory; None for one outside."""
        path = os.path.normpath(path)
        if path == self._root:
            return ""
        return path.removeprefix(self._root + "/") if path.startswith(self._root + "/") else None

    def _place(self, path: str) -> tuple[int, str]:
        """Return the directory of a path, and its name there."""
        relative = self._relative(path)
        if not relative:
            raise RecordingError(f"{path} is not below the directory")
        *parents, name = relative.split("/")
        folder = ROOT
        for parent in parents:
            folder = self.disk.folders[folder][parent]
            if folder not in self.disk.folders:
                raise RecordingError(f"{path} leads through a link")
        return folder, name

    def _inode(self, path: str) -> int | None:
        if self._relative(path) == "":
            return ROOT
        folder, name = self._place(path)
        return self.disk.folders[folder].get(name)

    def _shown(self, path: str) -> str:
        return self._relative(path) or "."

    def _new(self, content: bytes | Link | None) -> int:
        inode, self._next = self._next, self._next + 1
        self.before.put(inode, content)
        self.disk.put(inode, content)
        return inode

    def _make(self, call: Call, path: str, content: bytes | Link | None) -> None:
        place = (*self._place(path), self._new(content))
        text = f"{call.name} {self._shown(path)}"
        self._add(Names((place,), text, is_new_file=isinstance(content, bytes)), call)

    def _mkdir(self, call: Call) -> None:
        self._make(call, call.paths()[0], None)

    def _symlink(self, call: Call) -> None:
        self._make(call, call.paths()[0], Link(os.fsdecode(call.texts[0])))

    def _rename(self, call: Call) -> None:
        source, target = call.paths()
        if "RENAME_" in call.arguments and "RENAME_NOREPLACE" not in call.arguments:
            raise RecordingError(f"{call.name} is not understood: {call.arguments}")
        inode = self._inode(source)
        if inode == self._inode(target):
            return  # two names of one file: nothing happens
        changes = ((*self._place(source), None), (*self._place(target), inode))
        text = f"rename {self._shown(source)} to {self._shown(target)}"
        self._add(Names(changes, text), call)

    def _link(self, call: Call) -> None:
        source, target = call.paths()
        change = (*self._place(target), self._inode(source))
        self._add(Names((change,), f"link {self._shown(target)}"), call)

    def _unlink(self, call: Call) -> None:
        path = call.paths()[0]
        self._add(Names(((*self._place(path), None),), f"{call.name} {self._shown(path)}"), call)

    # Content

    def _open(self, call: Call) -> None:
        if call.path is None:
            return
        relative = self._relative(call.path)
        if relative is not None and "O_TMPFILE" in call.arguments:
            raise RecordingError("a file without a name is not understood")
        if relative is not None:
            if self._inode(call.path) is None:
                self._make(call, call.path, b"")
            inode = self._inode(call.path)
            if inode is not None and ("O_TRUNC" in call.arguments or call.name == "creat"):
                self._resize(call, call.path, inode, 0)
        else:
            inode = None
        appends = "O_APPEND" in call.arguments
        self._opened[call.thread, call.result] = _Opened(inode, call.path, appends)

    def _seek(self, call: Call) -> None:
        file = call.file(0)
        if (opened := self._opened.get((call.thread, file.number or 0))) is not None:
            opened.at_bytes = call.result

    def _target(self, call: Call, place: int = 0) -> int:
        """Return the inode of the file that an argument names."""
        file = call.file(place)
        inode = None if file.is_deleted else self._inode(file.path)
        if inode is None:
            raise RecordingError(f"{call.name} to {file.path}, which has no name any more")
        return inode

    def _position(self, call: Call, place: int) -> _Opened:
        """Return the open file of an argument, where the position is known."""
        file = call.file(place)
        opened = self._opened.get((call.thread, -1 if file.number is None else file.number))
        is_inside = self._relative(file.path) is not None
        if opened is None or opened.inode != (self._inode(file.path) if is_inside else None):
            raise RecordingError(f"nobody knows where {call.name} to {file.path} begins")
        return opened

    def _write(self, call: Call) -> None:
        inode, data = self._target(call), b"".join(call.texts)[: call.result]
        opened = self._opened.get((call.thread, call.file(0).number or 0))
        # On Linux, a write at an offset ignores it where the file was opened to append.
        if call.name in {"pwrite64", "pwritev"} and not (opened and opened.appends):
            self._written(call, inode, int(call.parts[-1]), data)
        else:
            self._append(call, 0, inode, data)

    def _append(self, call: Call, place: int, inode: int, data: bytes) -> None:
        """Write where the open file stands."""
        opened = self._position(call, place)
        if opened.appends:
            opened.at_bytes = len(self.disk.files[inode])
        self._written(call, inode, opened.at_bytes, data)
        opened.at_bytes += len(data)

    def _written(self, call: Call, inode: int, offset_bytes: int, data: bytes) -> None:
        if data:
            text = f"{call.name} {len(data)} bytes to {self._shown(call.file(_TO[call.name]).path)}"
            self._add(Write(inode, offset_bytes, data, text), call)

    def _copy(self, call: Call) -> None:
        """Follow `sendfile` and `copy_file_range`, whose bytes are not in the log."""
        place = _TO[call.name]
        inode = self._target(call, place)
        source = call.file(1 - place if call.name == "sendfile" else 0)
        given = call.parts[2] if call.name == "sendfile" else call.parts[1]
        if given == "NULL":
            opened = self._position(call, 1 if call.name == "sendfile" else 0)
            start_bytes = opened.at_bytes
            opened.at_bytes += call.result
        else:
            start_bytes = _offset(given)
        if self._relative(source.path) is None:
            content = Path(source.path).read_bytes()
        else:
            content = self.disk.files[self._target(call, 1 if call.name == "sendfile" else 0)]
        data = content[start_bytes : start_bytes + call.result]
        if call.name == "copy_file_range" and call.parts[3] != "NULL":
            self._written(call, inode, _offset(call.parts[3]), data)
        else:
            self._append(call, place, inode, data)

    def _resize(self, call: Call, path: str, inode: int, size_bytes: int) -> None:
        if len(self.disk.files[inode]) != size_bytes:
            text = f"{call.name} {self._shown(path)} to {size_bytes} bytes"
            self._add(Resize(inode, size_bytes, text), call)

    def _truncate(self, call: Call) -> None:
        path = call.paths()[0] if call.name == "truncate" else call.file(0).path
        inode = self._inode(path) if call.name == "truncate" else self._target(call)
        if inode is None:
            raise RecordingError(f"{path} is cut, and nobody knows it")
        self._resize(call, path, inode, int(call.parts[-1]))

    def _allocate(self, call: Call) -> None:
        inode, (_, mode, start, length) = self._target(call), call.parts
        if mode != "0":
            raise RecordingError(f"fallocate is not understood: {call.arguments}")
        size_bytes = max(int(start) + int(length), len(self.disk.files[inode]))
        self._resize(call, call.file(0).path, inode, size_bytes)

    # Syncs

    def _fsync(self, call: Call) -> None:
        file = call.file(0)
        if call.name == "syncfs":
            self._sync(call, None, "everything")
        elif not file.is_deleted:
            self._sync(call, self._target(call), self._shown(file.path))

    def _sync(self, call: Call, inode: int | None, what: str) -> None:
        begun = sum(line < call.begun for line in self._ended)
        self._add(Sync(inode, begun, f"{call.name} {what}"), call)


def _offset(argument: str) -> int:
    """Return what `[3] => [8]` says that an offset was."""
    return int(argument.partition("]")[0].removeprefix("["))


def _is_neutral_map(call: Call) -> bool:
    """Tell whether a call maps a file so that nothing is written to it."""
    is_writing = "PROT_WRITE" in call.arguments and "MAP_SHARED" in call.arguments
    return call.name == "mmap" and not is_writing


_OPENS: Final = frozenset({"open", "openat", "creat"})
_TO: Final = {
    "write": 0, "writev": 0, "pwrite64": 0, "pwritev": 0,
    "sendfile": 0, "copy_file_range": 2,
}  # fmt: skip
"""Which argument is the file that is written."""

_HANDLERS: Final[dict[str, Callable[[Recorder, Call], None]]] = {
    **dict.fromkeys(("mkdir", "mkdirat"), Recorder._mkdir),
    **dict.fromkeys(("symlink", "symlinkat"), Recorder._symlink),
    **dict.fromkeys(("rename", "renameat", "renameat2"), Recorder._rename),
    **dict.fromkeys(("link", "linkat"), Recorder._link),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), Recorder._unlink),
    **dict.fromkeys(("write", "writev", "pwrite64", "pwritev"), Recorder._write),
    **dict.fromkeys(("sendfile", "copy_file_range"), Recorder._copy),
    **dict.fromkeys(("truncate", "ftruncate"), Recorder._truncate),
    "fallocate": Recorder._allocate,
    **dict.fromkeys(("fsync", "fdatasync", "syncfs"), Recorder._fsync),
}
