"""The serial number of this device: the operator's word, or what its hardware says.

Rules:
- `serial` in agent.toml comes first; then the device tree of boards such as the Raspberry Pi; then
  the firmware of PCs, which only root can read on most systems.
- What vendors write for "none" is none, and so is what no selector could hold.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from agent.app.config import AgentConfig
from wire.files import open_file

MAX_BYTES: Final = 256
SERIAL: Final = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
_NONE: Final = frozenset({"none", "n/a", "na", "unknown", "default", "123456789"})


def serial_number(config: AgentConfig) -> str | None:
    """Return the serial number of this device; None if none is known.

    Args:
        config: The configuration, which names where the kernel shows hardware.
    """
    if config.serial is not None:
        return config.serial
    for path in (
        config.procfs_root / "device-tree" / "serial-number",
        config.sysfs_root / "class" / "dmi" / "id" / "product_serial",
    ):
        found = _read(path)
        if found is not None:
            return found
    return None


def _read(path: Path) -> str | None:
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES)
    except OSError:
        return None
    text = content.decode("ascii", "replace").strip("\x00 \t\r\n")
    is_none = text.strip("0") == "" or text.lower() in _NONE
    return None if is_none or SERIAL.fullmatch(text) is None else text
