"""A request that takes too long by its many samples fails alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.serve.settings import Mode, ServingSettings
from tests.simulators.packages import variant
from tests.simulators.patience import finished
from tests.simulators.rig import DIGEST, Rig, body_of, infer

ONE_BY_ONE = ServingSettings(infer_timeout_s=1.0, mode=Mode(stream=True))
TOO_MANY = np.zeros((1000, 4), np.float32)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, settings=ONE_BY_ONE)
    rig.use(variant("first", options={"delay_ms": "10"}))
    yield rig
    rig.stop()


def ask_too_much(rig: Rig) -> tuple[int, bytes]:
    client = rig.client()
    body, headers = body_of(TOO_MANY)
    client.request("POST", "/v2/models/digits/infer", body, headers)
    response = client.getresponse()
    try:
        return response.status, response.read()
    finally:
        client.close()


@pytest.mark.parametrize("warm", [True, False])
def test_large_requests_bench_no_variant(rig: Rig, *, warm: bool) -> None:
    for _ in range(4):
        if warm:
            client = rig.client()
            assert infer(client)[:2] == (200, "first")
            client.close()
        status, text = ask_too_much(rig)
        assert status == 413
        assert b"1000 samples took longer than 1 s: send fewer in a request" in text
    assert rig.server.benches.of(DIGEST) == {}
    client = rig.client()
    assert infer(client)[:2] == (200, "first")
    client.close()
    _, events = rig.recorder.drain()
    assert len(events) == 4
    assert all("ended for a large request" in event.reason for event in events)


def test_who_waits_for_a_large_request_is_answered(rig: Rig) -> None:
    outcomes: list[int] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(ask_too_much(rig)[0])) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    client = rig.client()
    for _ in range(10):
        assert infer(client)[:2] == (200, "first")
    client.close()
    for thread in threads:
        finished(thread)
    assert outcomes == [413, 413]
    assert rig.server.benches.of(DIGEST) == {}
