"""Reads what the device wrote to its disks, sent and received, since it was started.

Rules:
- Only what is hardware counts: no loop device, no disk in memory, no bridge, no container's end of
  a network. Modems and tunnels by which a device reaches its fleet count by their names.
- A name that holds an address of the hardware, as systemd makes them, is cut to its prefix: names
  go to the controller as attributes, and each device would bring one of its own.

Source:
    Linux: Documentation/block/stat.rst, sectors of 512 bytes;
    Documentation/ABI/testing/sysfs-class-net-statistics;
    systemd.net-naming-scheme(7): "x" and the address, after the type.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from telemetry.device.sensors.files import KernelFiles, children

MAX_NAMED: Final = 8
"""Disks, and interfaces, that are reported apart: more are no small device."""

SECTOR_BYTES: Final = 512
_SECTORS_WRITTEN: Final = 6
"""Position in a disk's `stat`."""

_DISK: Final = re.compile(r"(?!.*(boot|rpmb)\d*$).+")
_ANY: Final = re.compile(r".+")
_MODEM_OR_TUNNEL: Final = re.compile(r"(ppp|wwan|tun|wg|rmnet\w*?)\d+")
_BY_ADDRESS: Final = re.compile(r"(en|wl|ww)x[0-9a-f]{12}")


class Traffic(NamedTuple):
    """What has passed since the device was started, in bytes by name."""

    written: dict[str, int]
    received: dict[str, int]
    sent: dict[str, int]


class TrafficCounters:
    """The disks and the network interfaces of a device.

    Args:
        files: Reads the kernel's files.
        sysfs: Where sysfs is mounted.
    """

    def __init__(self, files: KernelFiles, sysfs: str) -> None:
        self._files = files
        self._sysfs = sysfs
        self._disks: list[str] = []
        self._interfaces: list[str] = []

    def scan(self) -> None:
        """Find the disks and the interfaces."""
        disks = children(f"{self._sysfs}/block", _DISK)
        self._disks = [disk for disk in disks if _is_hardware(disk)][:MAX_NAMED]
        interfaces = children(f"{self._sysfs}/class/net", _ANY)
        self._interfaces = [path for path in interfaces if _counts(path)][:MAX_NAMED]

    def read(self) -> Traffic:
        """Read all counters; one that cannot be read is left out."""
        written: dict[str, int] = {}
        received: dict[str, int] = {}
        sent: dict[str, int] = {}
        for disk in self._disks:
            words = (self._files.read(f"{disk}/stat") or b"").split()
            if len(words) > _SECTORS_WRITTEN and words[_SECTORS_WRITTEN].isdigit():
                written[Path(disk).name] = int(words[_SECTORS_WRITTEN]) * SECTOR_BYTES
        for path in self._interfaces:
            name = _without_address(Path(path).name)
            for counts, counter in ((received, "rx_bytes"), (sent, "tx_bytes")):
                size_bytes = self._files.number(f"{path}/statistics/{counter}")
                if size_bytes is not None and size_bytes >= 0:
                    counts[name] = counts.get(name, 0) + size_bytes
        return Traffic(written, received, sent)


def _counts(interface: str) -> bool:
    is_named = _MODEM_OR_TUNNEL.fullmatch(Path(interface).name) is not None
    return is_named or _is_hardware(interface)


def _is_hardware(path: str) -> bool:
    try:
        Path(path, "device").stat()
    except OSError:
        return False
    return True


def _without_address(name: str) -> str:
    found = _BY_ADDRESS.fullmatch(name)
    return f"{found[1]}x" if found else name
