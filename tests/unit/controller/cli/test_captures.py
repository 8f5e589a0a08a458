from __future__ import annotations

import pytest

from controller.capture_schemas import Capture
from controller.cli.captures import _which


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (1_000_000, "1 MB"),
        (1_500_000, "1.5 MB"),
        (500_000, "500 kB"),
        (2 * 1024**2, "2.0 MiB"),
        (123_456, "120.6 KiB"),
        (700, "700 B"),
    ],
)
def test_a_budget_is_shown_as_it_was_typed_and_for_each_device(size_bytes: int, shown: str) -> None:
    capture = Capture(model="digits", is_on=True, share=0.05, bytes_per_day=size_bytes)
    assert _which(capture) == f"5 %, up to {shown} a day on each device"
