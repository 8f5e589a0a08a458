"""How long tasks waited: the kernel's pressure stall information. Pure: bytes in, a share out.

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
    """Return for which share of the last 10 s tasks waited.

    Args:
        pressure: What /proc/pressure/* holds.
        kind: `some` of them, or `full` for all at once.

    Returns:
        The share, or None if it is not there or over 1.0.
    """
    found = _LINE[kind].search(pressure or b"")
    percent = float(found[1]) if found else None
    return percent / _PERCENT if percent is not None and percent <= _PERCENT else None
