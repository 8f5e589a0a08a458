"""Which cases a run of the tests takes: those of every change, or all of them (`make thorough`).

Rules:
- Every change runs each promise at least once. What repeats it over further cases, each of which
  takes seconds, is `thorough`.
"""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = bool(os.environ.get("EDGEFLEET_THOROUGH"))
"""Whether this run takes all."""
