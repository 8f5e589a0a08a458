"""Packages over a real broker: slow links, many devices at once, and what breaks in the middle.

Controller, broker and devices are processes; a device is the agent's fetcher with its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.transfers.link import Link
from benchmarks.transfers.measuring import run_once
from benchmarks.transfers.pace import LinkShape
from benchmarks.transfers.rig import Rig, running_rig
from tests.simulators.patience import PATIENCE_S

KIB = 1024
SIZES = {"small": 300 * KIB, "large": 5_000 * KIB}
USEFUL = 0.95
OVERHEAD_BYTES = 64 * KIB
"""Topics, properties and other messages."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running_rig(tmp_path_factory.mktemp("rig"), SIZES, 24) as made:
        yield made


def test_a_slow_link_is_filled_and_nothing_is_sent_twice(rig: Rig) -> None:
    shape = LinkShape(bytes_per_s=64e3, latency_s=0.02)
    device = rig.devices[0]
    with (
        Link(rig.address.port, shape) as link,
        rig.crowd([device], **{device.replace("-", "_"): link.port}) as crowd,
    ):
        run = run_once(rig, crowd, "small", limit_s=PATIENCE_S)
        assert [result.fault for result in run.results] == [""]
        assert link.down_bytes <= SIZES["small"] / USEFUL + OVERHEAD_BYTES


def test_many_devices_at_once_are_each_sent_what_they_lack_and_no_more(rig: Rig) -> None:
    with rig.crowd(rig.devices) as crowd:
        run = run_once(rig, crowd, "large", count=24, limit_s=PATIENCE_S)
    assert {result.fault for result in run.results} == {""}
    assert run.sent_bytes <= 24 * (SIZES["large"] / USEFUL + OVERHEAD_BYTES)
    assert run.broker_peak_mb < 50


def test_a_link_that_breaks_costs_what_was_under_way(rig: Rig) -> None:
    shape = LinkShape(bytes_per_s=1e6, latency_s=0.02)
    device = rig.devices[1]
    with (
        Link(rig.address.port, shape, cut_at_bytes=2_000_000) as link,
        rig.crowd([device], **{device.replace("-", "_"): link.port}) as crowd,
    ):
        run = run_once(rig, crowd, "large", limit_s=PATIENCE_S)
        assert [result.fault for result in run.results] == [""]
        assert link.cuts == 1
        assert link.down_bytes <= 1.2 * SIZES["large"]


def test_a_controller_that_stands_still_for_a_while_sends_nothing_twice(rig: Rig) -> None:
    """As on a machine that has more to do than it can: every device has long asked again."""
    controller = psutil.Process(rig.controller.pid)
    with rig.crowd(rig.devices[:8]) as crowd:
        stop = threading.Timer(0.05, controller.suspend)
        go_on = threading.Timer(8.0, controller.resume)
        stop.start()
        go_on.start()
        try:
            run = run_once(rig, crowd, "large", count=8, limit_s=PATIENCE_S)
        finally:
            stop.join()
            go_on.join()
            controller.resume()
    assert {result.fault for result in run.results} == {""}
    assert run.sent_bytes <= 8 * (SIZES["large"] / USEFUL + OVERHEAD_BYTES)
