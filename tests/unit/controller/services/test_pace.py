"""Work that takes long is done seldom; work that takes no time, always."""

from __future__ import annotations

from controller.services.pace import SHARE, Pace
from tests.simulators.clock import FakeClock


def test_work_takes_at_most_its_share_of_the_time() -> None:
    clock = FakeClock()
    pace = Pace(clock)
    with pace.working():
        pass
    assert pace.is_due()
    with pace.working():
        clock.advance(0.5)
    clock.advance(0.5 / SHARE - 0.6)
    assert not pace.is_due()
    clock.advance(0.2)
    assert pace.is_due()
