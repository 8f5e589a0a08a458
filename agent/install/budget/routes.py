"""Which interface the default route goes by, from the kernel's tables of routes.

Sources: `fib_route_seq_show` in `net/ipv4/fib_trie.c` and `rt6_info_route` (later
`ipv6_route_native_seq_show`) in `net/ipv6` of the Linux kernel write the two files; the flags are
those of `include/uapi/linux/route.h`.

Rules:
- The lowest metric wins; of equal ones IPv4, and then the first. The kernel's own IPv6 route `lo`,
  which refuses everything, is no default route.
- A line that is none is left out: another kernel may write more columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MAX_BYTES: Final = 256 * 1024
"""Of one file. A device has some ten routes; a default route comes first among them."""

MAX_NAME: Final = 64
"""The kernel's own limit is 15 bytes."""

RTF_UP: Final = 0x0001
RTF_REJECT: Final = 0x0200

_HEX: Final = re.compile(rb"[0-9A-Fa-f]{1,8}")
_DECIMAL: Final = re.compile(rb"[0-9]{1,10}")
_COLUMNS: Final = 8
_COLUMNS_6: Final = 10
_NOWHERE_6: Final = b"0" * 32


class Route(NamedTuple):
    """A default route."""

    metric: int
    interface: str


def default_interface(procfs: Path) -> str | None:
    """Return the interface of the default route.

    Args:
        procfs: Where procfs is mounted.

    Returns:
        Its name; None if there is no default route.
    """
    routes = [
        *routes_of_ipv4(_read(procfs / "net/route")),
        *routes_of_ipv6(_read(procfs / "net/ipv6_route")),
    ]
    return min(routes, key=lambda route: route.metric).interface if routes else None


def routes_of_ipv4(text: bytes) -> Iterator[Route]:
    """Yield the default routes of `net/route`."""
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) < _COLUMNS or not _DECIMAL.fullmatch(words[6]):
            continue
        interface, destination, flags, mask = words[0], words[1], words[3], words[7]
        if _number(destination) == 0 and _number(mask) == 0 and _is_usable(flags):
            yield Route(int(words[6]), _name(interface))


def routes_of_ipv6(text: bytes) -> Iterator[Route]:
    """Yield the default routes of `net/ipv6_route`."""
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) < _COLUMNS_6 or words[0] != _NOWHERE_6 or _number(words[1]) != 0:
            continue
        metric = _number(words[5])
        if metric is not None and _is_usable(words[8]):
            yield Route(metric, _name(words[9]))


def _is_usable(flags: bytes) -> bool:
    number = _number(flags)
    return number is not None and number & (RTF_UP | RTF_REJECT) == RTF_UP


def _number(word: bytes) -> int | None:
    return int(word, 16) if _HEX.fullmatch(word) else None


def _name(word: bytes) -> str:
    """Return the name of an interface, which may be any bytes but white space."""
    return word[:MAX_NAME].decode(errors="backslashreplace")


def _read(path: Path) -> bytes:
    """Return the content of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return b""
