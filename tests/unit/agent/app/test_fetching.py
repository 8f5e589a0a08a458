"""Who hears that a source of packages cannot go on."""

from __future__ import annotations

import io

from agent.app.fetching import TOLD_S, SourceFaults
from agent.errors import FetchError
from agent.log import Log
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard


def test_the_fleet_hears_now_and_then_and_the_log_each_time() -> None:
    clock, heard, lines = FakeClock(), Heard([], []), io.StringIO()
    faults = SourceFaults(Log(clock, lines), heard, clock)
    for _ in range(3):
        faults("http", FetchError("cdn cannot be read: connection refused"))
    faults("delta", FetchError("the delta did not come"))
    clock.advance(TOLD_S)
    faults("http", FetchError("cdn answers with status 503"))
    assert [(kind, reason) for kind, reason, _ in heard.events] == [
        ("source", "http: cdn cannot be read: connection refused"),
        ("source", "delta: the delta did not come"),
        ("source", "http: cdn answers with status 503"),
    ]
    assert lines.getvalue().count("cdn cannot be read: connection refused") == 2
