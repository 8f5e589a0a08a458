"""Malformed requests of every kind: each gets a 4xx, and none costs the worker or the next client.

The benchmark `endpoint_fuzz` drives the same kinds for longer.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.served import Alone
from tests.simulators.fuzz_client import FuzzClient
from tests.simulators.fuzz_requests import KINDS, QUICK, SLOW, Make
from tests.simulators.packages import variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.rig import Rig, infer

SEEDS_PER_KIND = 12
LIMITS = EndpointLimits(head_timeout_s=0.5, body_timeout_s=0.5)


class FuzzRig(Rig):
    """A rig with an endpoint that waits for nobody, beside the one that a proper client asks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.hasty = Endpoint(Alone(self.server.router), limits=LIMITS)
        self.hasty.start()
        self.use(variant("first"))
        self.first_pid = self.pid
        self.right = self.expected("first").tobytes()
        self.fuzz = FuzzClient(self.port, self.right)
        self.slow = FuzzClient(int(self.hasty.address.rpartition(":")[2]), self.right)
        self.steady = self.client()

    def check(self) -> None:
        """Ask for what is right, of the same worker as ever."""
        status, name, output = infer(self.steady)
        assert (status, name) == (200, "first")
        assert output.tobytes() == self.right
        assert self.pid == self.first_pid


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzRig]:
    rig = FuzzRig(tmp_path_factory.mktemp("fuzzed"))
    yield rig
    rig.steady.close()
    rig.hasty.stop()
    rig.stop()


@pytest.mark.parametrize("kind", ["valid", *QUICK])
def test_each_kind_is_refused_and_costs_nothing(rig: FuzzRig, kind: str) -> None:
    for seed in range(SEEDS_PER_KIND):
        rig.fuzz.play(KINDS[kind](random.Random(f"{kind} {seed}")))
        rig.check()


@pytest.mark.parametrize("kind", list(SLOW))
def test_slow_and_large_ones_are_refused_in_time(rig: FuzzRig, kind: str) -> None:
    for seed in range(2):
        rig.slow.play(SLOW[kind](random.Random(f"{kind} {seed}")))
        rig.check()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(QUICK.values())), st.randoms(use_true_random=False))
def test_any_request_costs_nothing(rig: FuzzRig, make: Make, rng: random.Random) -> None:
    rig.fuzz.play(make(rng))
    rig.check()


def test_many_at_once_do_not_disturb_those_that_ask_properly(rig: FuzzRig) -> None:
    faults: list[Exception] = []

    def disturb(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for make in rng.sample(list(QUICK.values()), 10):
                rig.fuzz.play(make(rng))
            rig.slow.play(SLOW["stalled"](rng))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the test must see it
            faults.append(exc)

    crowd = [threading.Thread(target=disturb, args=(seed,)) for seed in range(8)]
    for thread in crowd:
        thread.start()
    while any(thread.is_alive() for thread in crowd):
        rig.check()
    for thread in crowd:
        thread.join()
    assert faults == []


def test_a_stranger_who_takes_all_connections_is_rid_of(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    limits = EndpointLimits(head_timeout_s=0.2, body_timeout_s=0.2, idle_s=0.2, connections=4)
    endpoint = Endpoint(Alone(rig.server.router), limits=limits)
    endpoint.start()
    port = int(endpoint.address.rpartition(":")[2])
    fuzz = FuzzClient(port, b"")
    rng = random.Random(4)
    greedy = [threading.Thread(target=fuzz.play, args=(SLOW["stalled"](rng),)) for _ in range(4)]
    for thread in greedy:
        thread.start()
    for thread in greedy:
        thread.join()

    def is_answered() -> bool:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
            client.request("GET", "/v2/health/live")
            with client.getresponse() as response:
                return response.status == 200
        return False

    until(is_answered, "a free connection")
    endpoint.stop()
    rig.stop()
