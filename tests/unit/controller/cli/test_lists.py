from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from controller.cli.lists import time_heading

JANUARY_S, JULY_S = 1_768_478_400.0, 1_784_116_800.0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_heading_names_the_zone_of_its_times() -> None:
    assert time_heading("TIME", [JANUARY_S, None]) == "TIME (CET)"
    assert time_heading("TIME", [JULY_S]) == "TIME (CEST)"
    assert time_heading("TIME", [JULY_S, JANUARY_S]) == "TIME (CET, CEST)"
    assert time_heading("TIME", [None]) == "TIME"
