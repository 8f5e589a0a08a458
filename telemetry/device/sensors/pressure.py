"""How long tasks waited: the kernel's pressure stall information. Pure.

Source:
    Linux: Documentation/accounting/psi.rst: "some avg10=0.00 avg60=0.00 avg300=0.00 total=0".
"""

from __future__ import annotations

import re
from typing import Final

_PERCENT: Final = 100.0
_LINE: Final = {
    kind: re.compile(rb"^%s avg10=(\d{1,3}\.\d\d) " % kind, re.MULTILINE)
    for kind in (b"some", b"full")
}


def stall_ratio(pressure: bytes | None, kind: bytes) -> float | None:
    """Return the share of the last 10 s in which tasks waited.

    Args:
        pressure: The content of /proc/pressure/*.
        kind: `some` when at least one task waited, `full` when all did.

    Returns:
        The share, or None if it is missing or over 1.0.
    """
    found = _LINE[kind].search(pressure or b"")
    percent = float(found[1]) if found else None
    return percent / _PERCENT if percent is not None and percent <= _PERCENT else None
