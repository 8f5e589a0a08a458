"""Which contents of a disk a crash may leave, from the operations of a program. Pure.

The model, of a local file system such as ext4, XFS or Btrfs:

- What was written is durable after a sync of that file, and a change of names after a sync of the
  directory where it ends; before that each may be on the disk or not, in any order.
- The changes of one name reach the disk in their order, and a rename happens whole or not at all.
- Of a write there may be nothing, all, its first half, or zeros of its length.
- `fsync` of a new file makes its name durable, too. A stricter model does not allow that.

Rules:
- A crash just before a sync covers every crash since the sync before it, because what was done
  meanwhile may be missing. So only these points and the end are looked at.
- Where few operations are pending, all their subsets are taken. Where many are, these: all, none,
  each alone, all but each, the first so many, the last so many, all of one file or directory
  missing, names without content, content without names.
- A state that comes about in several ways counts once, with all that the program had said by then.

Source:
    Pillai et al. 2014, "All File Systems Are Not Created Equal": applications are checked against
    every state that a file system may leave, found from a trace of system calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

ROOT: Final = 0
"""The inode of the directory itself."""

ALL_SUBSETS: Final = 6
"""Up to so many pending operations, every subset of them is taken."""

BLOCK_BYTES: Final = 512
"""A long write is torn between two sectors."""


@dataclass(frozen=True)
class Names:
    """Entries of directories that change together."""

    changes: tuple[tuple[int, str, int | None], ...]
    """Directory, name, and the inode that it names from now on; None for no more."""

    text: str
    is_new_file: bool = False
    """Whether it gives a new file its first name."""


@dataclass(frozen=True)
class Write:
    """Bytes that go into a file."""

    inode: int
    offset_bytes: int
    data: bytes
    text: str


@dataclass(frozen=True)
class Resize:
    """A file becomes so long."""

    inode: int
    size_bytes: int
    text: str


@dataclass(frozen=True)
class Sync:
    """A file or a directory is made durable."""

    inode: int | None
    """None for everything."""

    begun: int
    """How many operations had ended when it began: no later one is covered."""

    text: str


@dataclass(frozen=True)
class Said:
    """The program tells somebody something, who relies on it from now on."""

    text: str


Change = Names | Write | Resize
Operation = Change | Sync | Said


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    to: str


Tree = Mapping[str, bytes | Link | None]
"""By path: the content of a file, a link, or None for a directory."""


class Form(Enum):
    """What of a write is on the disk."""

    WHOLE = "whole"
    TORN = "torn"
    ZEROED = "zeros"


@dataclass
class Disk:
    """Inodes with their contents; also those that no name leads to yet."""

    files: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, str] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def copy(self) -> Disk:
        """Return a disk that changes apart from this one."""
        folders = {inode: dict(names) for inode, names in self.folders.items()}
        return Disk(files=dict(self.files), links=self.links, folders=folders)

    def put(self, inode: int, content: bytes | Link | None) -> None:
        """Have an inode with a content: of a file, a link, or None for an empty directory."""
        if content is None:
            self.folders[inode] = {}
        elif isinstance(content, Link):
            self.links[inode] = content.to
        else:
            self.files[inode] = content

    def apply(self, change: Change, form: Form = Form.WHOLE) -> None:
        """Let a change reach the disk."""
        if isinstance(change, Names):
            for folder, name, inode in change.changes:
                if inode is None:
                    self.folders[folder].pop(name, None)
                else:
                    self.folders[folder][name] = inode
            return
        content = self.files[change.inode]
        if isinstance(change, Resize):
            self.files[change.inode] = content[: change.size_bytes].ljust(change.size_bytes, b"\0")
            return
        data, start = _formed(change.data, form), change.offset_bytes
        head = content[:start].ljust(start, b"\0")
        self.files[change.inode] = head + data + content[start + len(data) :]

    def tree(self) -> dict[str, bytes | Link | None]:
        """Return what can be reached by name."""
        found: dict[str, bytes | Link | None] = {}
        left = [("", ROOT)]
        while left:
            path, folder = left.pop()
            for name, inode in self.folders[folder].items():
                place = f"{path}{name}"
                if inode in self.folders:
                    found[place] = None
                    left.append((f"{place}/", inode))
                else:
                    found[place] = (
                        Link(self.links[inode]) if inode in self.links else self.files[inode]
                    )
        return found


@dataclass(frozen=True)
class CrashState:
    """What a crash may leave."""

    tree: Tree
    said: tuple[str, ...]
    """What the program had told by then."""

    point: int
    """How many operations had ended."""

    lost: tuple[str, ...]
    """Which of them are not on the disk, or not whole."""

    def __str__(self) -> str:
        return f"after {self.point} operations without: {'; '.join(self.lost) or 'nothing'}"


def crash_states(
    before: Disk, operations: tuple[Operation, ...], *, is_strict: bool = False
) -> list[CrashState]:
    """Return every state of the disk that a crash may leave, each once.

    Args:
        before: The disk when the program began, with the inodes that it made.
        operations: What the program did, in the order in which it ended.
        is_strict: Whether `fsync` of a new file leaves its name as it is.

    Returns:
        The states, in the order in which they come about last; the end is the last one.
    """
    found: dict[frozenset[tuple[str, bytes | Link | None]], CrashState] = {}
    earlier = _earlier(operations)
    durable: set[int] = set()
    base, settled = before.copy(), 0
    said: list[str] = []
    for point in range(len(operations) + 1):
        ended = point == len(operations)
        operation = None if ended else operations[point]
        if isinstance(operation, Said):
            said.append(operation.text)
        if not (ended or isinstance(operation, Sync)):
            continue
        while settled < point and (
            settled in durable or isinstance(operations[settled], Sync | Said)
        ):
            if isinstance(change := operations[settled], Change):
                base.apply(change)
            settled += 1
        pending = [
            n
            for n in range(settled, point)
            if n not in durable and isinstance(operations[n], Change)
        ]
        for kept in _choices(pending, operations, earlier):
            disk = base.copy()
            for n in range(settled, point):
                if isinstance(change := operations[n], Change) and (n in durable or n in kept):
                    disk.apply(change, kept.get(n, Form.WHOLE))
            tree = disk.tree()
            lost = tuple(
                operations[n].text + (f" ({kept[n].value})" if n in kept else "")
                for n in pending
                if kept.get(n) is not Form.WHOLE
            )
            # What was said grows, so the later state asks for all that the earlier one did.
            key = frozenset(tree.items())
            found.pop(key, None)
            found[key] = CrashState(tree, tuple(said), point, lost)
        if isinstance(operation, Sync):
            durable |= _made_durable(operation, operations, earlier, is_strict=is_strict)
    return list(found.values())


def _formed(data: bytes, form: Form) -> bytes:
    if form is Form.ZEROED:
        return bytes(len(data))
    if form is Form.WHOLE:
        return data
    half = len(data) // 2
    return data[: half // BLOCK_BYTES * BLOCK_BYTES or half]


def _earlier(operations: tuple[Operation, ...]) -> dict[int, set[int]]:
    """Return by change of names which changes of the same names came just before it."""
    earlier: dict[int, set[int]] = {}
    last: dict[tuple[int, str], int] = {}
    for number, operation in enumerate(operations):
        if isinstance(operation, Names):
            touched = [(folder, name) for folder, name, _ in operation.changes]
            earlier[number] = {last[each] for each in touched if each in last}
            last |= dict.fromkeys(touched, number)
    return earlier


def _with_earlier(numbers: Collection[int], earlier: dict[int, set[int]]) -> set[int]:
    """Return changes and those that are on the disk before them."""
    found: set[int] = set()
    left = [*numbers]
    while left:
        number = left.pop()
        if number not in found:
            found.add(number)
            left.extend(earlier.get(number, ()))
    return found


def _made_durable(
    sync: Sync,
    operations: tuple[Operation, ...],
    earlier: dict[int, set[int]],
    *,
    is_strict: bool,
) -> set[int]:
    return _with_earlier(
        [
            number
            for number, operation in enumerate(operations[: sync.begun])
            if _covers(sync, operation, is_strict=is_strict)
        ],
        earlier,
    )


def _covers(sync: Sync, operation: Operation, *, is_strict: bool) -> bool:
    if isinstance(operation, Sync | Said):
        return False
    if sync.inode is None:
        return True
    if not isinstance(operation, Names):
        return operation.inode == sync.inode
    folder, _, inode = operation.changes[-1]
    return folder == sync.inode or (operation.is_new_file and inode == sync.inode and not is_strict)


def _choices(
    pending: list[int], operations: tuple[Operation, ...], earlier: dict[int, set[int]]
) -> Iterator[dict[int, Form]]:
    """Return which pending changes are on the disk, and in which form."""
    seen: set[frozenset[int]] = set()
    for subset in _subsets(pending, operations):
        kept = frozenset(_with_earlier(subset, earlier)).intersection(pending)
        if kept not in seen:
            seen.add(kept)
            yield dict.fromkeys(kept, Form.WHOLE)
    writes = [n for n in pending if isinstance(operations[n], Write)]
    for form in (Form.TORN, Form.ZEROED):
        for number in writes:
            yield {n: form if n == number else Form.WHOLE for n in pending}
            yield {n: form if n == number else Form.WHOLE for n in pending if n <= number}
        yield {n: form if n in writes else Form.WHOLE for n in pending}


def _subsets(pending: list[int], operations: tuple[Operation, ...]) -> Iterator[Collection[int]]:
    if len(pending) <= ALL_SUBSETS:
        for size in range(len(pending) + 1):
            yield from itertools.combinations(pending, size)
        return
    for place, number in enumerate(pending):
        yield (number,)
        yield [n for n in pending if n != number]
        yield pending[:place]
        yield pending[place:]
    for inode in {inode for n in pending for inode in _touched(operations[n])}:
        yield [n for n in pending if inode not in _touched(operations[n])]
    names = {n for n in pending if isinstance(operations[n], Names)}
    yield names
    yield [n for n in pending if n not in names]
    yield pending


def _touched(operation: Operation) -> set[int]:
    """Return the inodes of the files and directories that an operation changes."""
    if isinstance(operation, Names):
        return {folder for folder, _, _ in operation.changes}
    return {operation.inode} if isinstance(operation, Write | Resize) else set()
