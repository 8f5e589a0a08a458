"""Where a package that is measured lies on this device, apart from everything that is installed.

```
measuring/asked          the request that is being worked on
measuring/<digest>/      its package
measuring/parts/         files that are partly here
```

Rules:
- All of it goes when the measurement ends, and at the next start of the agent.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from agent.errors import storage_faults
from agent.package_files import keep_directory
from wire.files import PRIVATE, write_atomic

DIRECTORY: Final = "measuring"
ASKED: Final = "asked"
MAX_ID_BYTES: Final = 64


class Place:
    """The directory of measurements.

    Args:
        state_dir: The agent's own directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / DIRECTORY
        self.parts = self._root / "parts"

    def left(self) -> str | None:
        """Return the identifier of the request that a restart interrupted; None if there is none.

        Raises:
            StorageError: The storage failed.
        """
        with storage_faults("cannot read the directory of measurements"):
            try:
                with (self._root / ASKED).open("rb") as file:
                    return file.read(MAX_ID_BYTES).decode("ascii", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                return None

    def begin(self, identifier: str) -> None:
        """Make the directory, and remember the request over a restart.

        Raises:
            StorageError: The storage failed.
        """
        self.clear()
        with storage_faults("cannot make the directory of measurements"):
            self.parts.mkdir(mode=0o700, parents=True)
            write_atomic(self._root / ASKED, identifier.encode("ascii"), mode=PRIVATE)

    def directory(self, digest: str) -> Path:
        """Return the directory of a package."""
        return self._root / digest

    def file(self, name: str) -> Path:
        """Return the path of a file beside the package."""
        return self._root / name

    def clear(self) -> None:
        """Remove everything.

        Raises:
            StorageError: The storage failed.
        """
        with storage_faults("cannot remove the directory of measurements"):
            keep_directory(self._root)
            if self._root.exists():
                shutil.rmtree(self._root)
