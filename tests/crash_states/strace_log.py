"""Reads what strace has written: one system call after another, as they ended.

Rules:
- All text in the log is hexadecimal (`strace -xx`), so nothing in it can look like the log itself.
- A call that failed, or never returned, changed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LINE = re.compile(r"(?P<thread>\d+)\s+(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<name>\w+)\()")
_END = re.compile(r"\)?\s*=\s+(?P<result>0x[0-9a-f]+|\d+)(?:<(?P<path>(?:\\x..)*)>)?$")
_UNFINISHED = "<unfinished ...>"
_FILE = re.compile(r"(?:AT_FDCWD|(?P<number>\d+))<(?P<path>(?:\\x..)*)>(?P<deleted>\(deleted\))?")
_TEXT = re.compile(r'"((?:\\x..)*)"')


@dataclass(frozen=True)
class File:
    """An argument that names an open file."""

    number: int | None
    """None for the working directory."""

    path: str
    is_deleted: bool


@dataclass(frozen=True)
class Call:
    """A system call that succeeded."""

    thread: int
    name: str
    arguments: str
    """As they stand in the log."""

    result: int
    path: str | None
    """Of the file that it opened."""

    line: int
    begun: int
    """The lines of the log where it ended and where it began; the same for most."""

    @property
    def parts(self) -> list[str]:
        """The arguments, each as it stands in the log."""
        return self.arguments.split(", ")

    def file(self, place: int) -> File:
        """Return the open file that an argument names."""
        match = _FILE.fullmatch(self.parts[place])
        if match is None:
            raise ValueError(f"no open file: {self.parts[place]}")
        number = match["number"]
        return File(
            None if number is None else int(number), _text(match["path"]), bool(match["deleted"])
        )

    @property
    def texts(self) -> list[bytes]:
        """All strings among the arguments."""
        return [_bytes(each) for each in _TEXT.findall(self.arguments)]

    def paths(self) -> list[str]:
        """Return the paths among the arguments; a relative one follows its directory, if any.

        What a symbolic link is to name is no path here.
        """
        found, folder = [], ""
        for part in self.parts:
            if match := _FILE.fullmatch(part):
                folder = _text(match["path"])
            elif match := _TEXT.fullmatch(part):
                path = _text(match[1])
                found.append(f"{folder}/{path}" if folder and not path.startswith("/") else path)
        return found[1:] if self.name.startswith("symlink") else found


def calls(lines: Iterable[str]) -> Iterator[Call]:
    """Return the calls that succeeded, in the order in which they ended.

    Raises:
        ValueError: A line is cut off.
    """
    begun: dict[int, tuple[int, str]] = {}
    for number, raw in enumerate(lines):
        line = raw.rstrip("\n")
        match = _LINE.match(line)
        if match is None:
            continue
        thread, rest = int(match["thread"]), line[match.end() :]
        first, head = begun.pop(thread, (number, "")) if match["resumed"] else (number, "")
        if rest.endswith(_UNFINISHED):
            begun[thread] = (number, rest.removesuffix(_UNFINISHED))
            continue
        if end := _END.search(head + rest):
            arguments = (head + rest)[: end.start()].strip()
            if '"...' in arguments:
                raise ValueError(f"line {number} of the log is cut off")
            path = None if end["path"] is None else _text(end["path"])
            name = match["resumed"] or match["name"]
            yield Call(thread, name, arguments, int(end["result"], 0), path, number, first)


def hexadecimal(text: str) -> str:
    """Return a text as it stands in the log."""
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return _bytes(text).decode("utf-8", "surrogateescape")
