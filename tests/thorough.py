"""Which cases a run of the tests takes: those of every change, or all of them (`make thorough`).

Rules:
- Every change runs each promise at least once. What repeats it over further cases, each of which
  takes seconds, is `thorough`.
- Of many alike cases of a test every change runs some, evenly spread: the marker `few`.
"""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = bool(os.environ.get("EDGEFLEET_THOROUGH"))
"""Whether this run takes all."""

EXAMPLES: Final = 100 if THOROUGH else 30
"""How many examples show a property, unless its test says more: each run draws others."""
