"""How often Python looks for unreachable cycles in the controller: seldom.

A batch of telemetry becomes tens of thousands of objects that live for milliseconds and are in no
cycle. By default each 700 more of them let Python look, and each 70,000 at all that there is.

Source:
    https://docs.python.org/3/library/gc.html: `set_threshold`, `freeze`.
    benchmarks/telemetry_store.py measures with it.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 20, 50)
"""Objects more than at the last look until the next, and after how many looks older ones are looked
at, and all: after 50 million."""


def collect_seldom() -> None:
    """Do so from now on; what is there now, such as modules, is not looked at any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
