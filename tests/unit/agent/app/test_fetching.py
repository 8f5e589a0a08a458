"""Who hears that a source of packages cannot go on."""

from __future__ import annotations

import io

from agent.app.fetching import SLOW_METRIC, TOLD_S, SlowSources, SourceFaults
from agent.errors import FetchError
from agent.install.fetch.fetcher import SlowSource
from agent.install.fetch.slowness import Slow
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


def test_a_slow_source_is_told_with_its_rates_and_counted_each_time() -> None:
    clock, heard, lines = FakeClock(), Heard([], []), io.StringIO()
    slow = SlowSources(Log(clock, lines), heard, clock, valid_s=180.0)
    drip = Slow(who="cdn", bytes_per_s=12.34, least_bytes_per_s=2048.0)
    for _ in range(3):
        slow(SlowSource(source="http", slow=drip, other="mqtt"))
    (event,) = heard.events
    assert event == (
        "slow",
        "slow retrieval: http (cdn) brings 12 bytes/s, less than 2048; mqtt is asked now",
        {
            "source": "http",
            "who": "cdn",
            "other": "mqtt",
            "bytes_per_s": 12.3,
            "least_bytes_per_s": 2048.0,
        },
    )
    assert heard.figures == [(SLOW_METRIC, 1.0, {"source": "http"})] * 3
    assert lines.getvalue().count("slow retrieval") == 2
    assert slow.alone == ""


def test_that_the_only_source_is_slow_is_said_until_it_is_not_found_so_any_more() -> None:
    clock, heard = FakeClock(), Heard([], [])
    slow = SlowSources(Log(clock, io.StringIO()), heard, clock, valid_s=180.0)
    drip = Slow(who="the controller", bytes_per_s=300.0, least_bytes_per_s=2048.0)
    slow(SlowSource(source="mqtt", slow=drip, other=""))
    said = (
        "slow retrieval: mqtt (the controller) brings 300 bytes/s, less than 2048, and nothing "
        "else brings more"
    )
    assert slow.alone == said
    clock.advance(179.0)
    assert slow.alone == said
    clock.advance(1.0)
    assert slow.alone == ""
    slow(SlowSource(source="mqtt", slow=drip, other=""))
    slow(SlowSource(source="mqtt", slow=drip, other="http"))
    assert slow.alone == "", "another source is asked"
