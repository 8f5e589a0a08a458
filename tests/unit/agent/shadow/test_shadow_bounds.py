"""When a shadow may run, and how many requests may wait for it."""

from __future__ import annotations

import pytest

from agent.select.levers import Cause, Levers
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall
from agent.shadow.bounds import INSTALL, hindrance
from agent.shadow.waiting import MOST, MOST_BYTES, Sample, Waiting
from tests.simulators.packages import variant
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

MIB = 2**20
SPEC = PolicySpec()
CALM = Levers()
LIVE, SHADOW = variant("live", memory_bytes=100 * MIB), variant("next", memory_bytes=50 * MIB)


def free(size_bytes: int | None) -> HealthSnapshot:
    return HealthSnapshot(at_s=0.0, memory_available_bytes=size_bytes)


@pytest.mark.parametrize("cause", ["battery", "contention", "heat", "load"])
def test_each_strain_ends_it(cause: Cause) -> None:
    word = "other programs" if cause == "contention" else cause
    levers = Levers(causes=(cause,), reasons=(f"{word}: it is so",))
    found = hindrance(levers, free(None), SPEC, installs=False, needs=())
    assert found == (cause, f"{word}: it is so")


def test_an_install_goes_first() -> None:
    assert hindrance(CALM, free(None), SPEC, installs=True, needs=()) == INSTALL


def test_there_stays_room_for_a_switch_of_what_serves() -> None:
    keeps = SPEC.low_memory_bytes
    both, one = [LIVE, SHADOW], [LIVE]
    for needs, size in ((both, 150 * MIB), (one, 100 * MIB)):
        enough = hindrance(CALM, free(keeps + size), SPEC, installs=False, needs=needs)
        less = hindrance(CALM, free(keeps + size - 1), SPEC, installs=False, needs=needs)
        assert enough is None
        assert less is not None
        assert less.word == "memory"


def sample(size_bytes: int) -> Sample:
    call = InferenceCall(model="m", version=None, header_length=None, body=memoryview(b""))
    reply = Reply(status=200, headers={}, body=memoryview(bytes(size_bytes)))
    return Sample(call, reply, 0.0)


def test_few_requests_wait_and_what_does_not_fit_is_dropped() -> None:
    waiting = Waiting()
    assert [waiting.add(sample(1)) for _ in range(MOST + 1)] == [True] * MOST + [False]
    waiting.remove_oldest()
    assert not waiting.add(sample(MOST_BYTES))
    assert waiting.add(sample(MOST_BYTES - (MOST - 1)))
    assert waiting.clear() == MOST
    assert waiting.oldest is None
    assert waiting.add(sample(MOST_BYTES))
