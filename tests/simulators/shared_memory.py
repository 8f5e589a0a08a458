"""POSIX shared memory of a client, and requests that name it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from agent.serve.regions import DIRECTORY

STRANGER: Final = 12345
"""A user that no machine has."""

NEEDS_ROOT: Final = "only root can act as another user"


class Shared:
    """An object of POSIX shared memory."""

    def __init__(self, size: int, *, mode: int = 0o600) -> None:
        self.key = f"/edgefleet-test-{secrets.token_hex(8)}"
        self.path = Path(DIRECTORY) / self.key[1:]
        self.mode = mode
        self.make(size)

    def make(self, size: int) -> None:
        """Make it anew."""
        self.path.unlink(missing_ok=True)
        with self.path.open("xb") as file:
            os.fchmod(file.fileno(), self.mode)
            file.truncate(size)

    def write(self, content: bytes, offset: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(content)

    def read(self) -> bytes:
        return self.path.read_bytes()


@contextmanager
def shared(size: int, *, mode: int = 0o600) -> Iterator[Shared]:
    """Make an object that is removed at the end."""
    made = Shared(size, mode=mode)
    try:
        yield made
    finally:
        with suppress(OSError):
            made.path.unlink(missing_ok=True)


def named(region: str, byte_size: int, offset: int = 0) -> dict[str, Any]:
    """Return the parameters of a tensor that lies in a region."""
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": byte_size}
    return parameters | ({"shared_memory_offset": offset} if offset else {})


def asking(
    source: dict[str, Any] | None,
    target: dict[str, Any] | None = None,
    **more: Any,
) -> bytes:
    """Return a request of the null variants whose input or output may lie in a region."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    tensor |= {"data": [0, 1, 2, 3]} if source is None else {"parameters": source}
    request: dict[str, Any] = {"inputs": [tensor | more.pop("tensor", {})], **more}
    if target is not None:
        request["outputs"] = [{"name": "y", "parameters": target}]
    return json.dumps(request).encode()
