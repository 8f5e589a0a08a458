"""Keeps sealed samples on the disk until the controller has them, each in a file of its own.

`NUMBER-CAPTURE-SAMPLE.sample` is MessagePack of `StoredSample`. Numbers rise, so the oldest is sent
first.

Rules:
- A file is written completely or not at all, and is for the agent's user alone. What is in it is
  sealed: the device itself cannot read it any more.
- All files together have a bound; what would be over it is not kept.
- What was used of the budgets is written with each sample. If that cannot be written the sample
  is not kept: a restart must not give a device its budget again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.capture.budget import Spent
from agent.errors import storage_faults
from wire.capture import MAX_HEAD_BYTES, MAX_SEALED_BYTES, SampleHead
from wire.codec import from_json, from_msgpack, to_json, to_msgpack
from wire.errors import WireFormatError
from wire.files import make_directory, read_regular, write_atomic

MAX_FILE_BYTES: Final = MAX_SEALED_BYTES + MAX_HEAD_BYTES + 64
MAX_SPENT_BYTES: Final = 16 * 1024
SPENT_FILE: Final = "spent.json"
_NAME: Final = re.compile(r"([0-9]{12})-([0-9a-f]{32})-([0-9a-f]{32})\.sample")
_TEMPORARY: Final = re.compile(r"\..*\.new")


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample as it lies in its file."""

    head: bytes
    sealed: bytes


class _Kept(NamedTuple):
    path: Path
    capture: str
    size_bytes: int


class SampleStore:
    """A directory of samples. Not for several threads.

    Args:
        directory: Where; made when the first sample comes.
        limit_bytes: What all files may take together.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._kept: dict[str, _Kept] = {}
        self._next = 1
        self.spent = Spent()
        """What was used of the budgets, as far as the disk knows."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no sample."""
        return not self._kept

    @property
    def size_bytes(self) -> int:
        """What all samples take."""
        return sum(each.size_bytes for each in self._kept.values())

    def has(self, name: str) -> bool:
        """Tell whether there is a sample of a name."""
        return name in self._kept

    def load(self) -> None:
        """Find what a restart left, and remove what a crash left half done.

        Raises:
            StorageError: The directory cannot be read.
        """
        with storage_faults("cannot read the captured samples"):
            if not self._directory.is_dir():
                return
            for path in sorted(self._directory.iterdir()):
                if match := _NAME.fullmatch(path.name):
                    self._next = int(match[1]) + 1
                    self._kept[match[3]] = _Kept(path, match[2], path.stat().st_size)
                elif _TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            self.spent = self._read_spent()

    def add(self, head: SampleHead, sample: StoredSample, spent: Spent) -> bool:
        """Keep a sample.

        Args:
            head: Its names.
            sample: The sample.
            spent: What is used of the budgets with it.

        Returns:
            False if there is no room for it.

        Raises:
            StorageError: The disk refused; nothing is kept.
        """
        content = to_msgpack(sample)
        if self.size_bytes + len(content) > self._limit_bytes:
            return False
        path = self._directory / f"{self._next:012d}-{head.capture}-{head.sample}.sample"
        with storage_faults("cannot keep a captured sample"):
            make_directory(self._directory)
            write_atomic(self._directory / SPENT_FILE, to_json(spent))
            self.spent = spent
            write_atomic(path, content)
        self._next += 1
        self._kept[head.sample] = _Kept(path, head.capture, len(content))
        return True

    def oldest(self) -> tuple[str, StoredSample] | None:
        """Return the sample that waits the longest.

        A file that is damaged is removed; one that cannot be read waits for the next start.

        Returns:
            Its name and itself; None if there is none.

        Raises:
            StorageError: A damaged file cannot be removed.
        """
        for name, kept in list(self._kept.items()):
            try:
                data = read_regular(kept.path, MAX_FILE_BYTES)
                return name, from_msgpack(data, StoredSample, limit_bytes=MAX_FILE_BYTES)
            except WireFormatError:
                self.remove(name)
            except OSError:
                del self._kept[name]
        return None

    def remove(self, name: str) -> None:
        """Remove a sample; one that is not there is no fault.

        Raises:
            StorageError: The disk refused.
        """
        kept = self._kept.get(name)
        if kept is not None:
            with storage_faults("cannot remove a captured sample"):
                kept.path.unlink(missing_ok=True)
            del self._kept[name]

    def keep_only(self, captures: Collection[str]) -> None:
        """Remove the samples of all captures but some.

        Raises:
            StorageError: The disk refused.
        """
        for name in [name for name, k in self._kept.items() if k.capture not in captures]:
            self.remove(name)

    def _read_spent(self) -> Spent:
        try:
            data = read_regular(self._directory / SPENT_FILE, MAX_SPENT_BYTES)
            return from_json(data, Spent, limit_bytes=MAX_SPENT_BYTES)
        except (WireFormatError, FileNotFoundError):
            return Spent()
