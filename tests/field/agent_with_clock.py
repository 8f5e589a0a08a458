"""`fleet-agent run` on a device whose wall clock jumps: `python -m ... CONFIG OFFSET_FILE`.

The file holds eight bytes: by how many seconds the clock is wrong, as a little-endian double.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

from agent.app.config_file import load_config
from agent.app.daemon import Daemon
from wire.clock import SystemClock

OFFSET = struct.Struct("<d")


class WrongClock(SystemClock):
    """The machine's clocks, with wall time off by what the file says.

    Args:
        file: Holds the offset.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            self._offset = mmap.mmap(opened.fileno(), OFFSET.size, access=mmap.ACCESS_READ)

    def now_s(self) -> float:
        return super().now_s() + float(OFFSET.unpack(self._offset)[0])


if __name__ == "__main__":
    config, offset_file = map(Path, sys.argv[1:])
    sys.exit(Daemon(load_config(config), clock=WrongClock(offset_file)).run())
