"""The numbers of PostgreSQL's advisory locks: two of one number would wait for each other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_no_two_locks_have_one_number() -> None:
    numbers = Counter(
        int(found, 16)
        for folder in ("controller", "telemetry")
        for path in (ROOT / folder).rglob("*.py")
        for found in re.findall(r"\b0x65666C_[0-9A-F]+\b", path.read_text())
    )
    assert len(numbers) > 5
    assert set(numbers.values()) == {1}
