"""A small fleet in the field: the same program as `make field`, with few devices and kills."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.field.run import Field, report

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]


def test_a_small_field_keeps_every_invariant() -> None:
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        field = Field(Path(directory), seed=2, count=4, kills=8, most_s=120.0)
        field.run()
        report(field, 0.0)
        assert field.broken == []
        assert field.faults.kills >= 1
        assert field.tally.counts["right"] > 0
