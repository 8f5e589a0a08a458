"""Runs one transfer on a rig and reads the meters before and after it."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.transfers.crowd import Crowd
from benchmarks.transfers.figures import Run
from benchmarks.transfers.rig import Rig
from benchmarks.transfers.usage import cpu_s, forget_peak, peak_mb, traffic_bytes

SETTLE_S: Final = 0.3
"""After a transfer: what is still under way, such as chunks sent twice, counts too."""


def run_once(
    rig: Rig,
    crowd: Crowd,
    blob: str,
    *,
    count: int = 1,
    limit_s: float,
    settle: bool = True,
    multicast: bool = False,
) -> Run:
    """Have devices fetch a file at the same time.

    Args:
        rig: What runs.
        crowd: The devices.
        blob: The file.
        count: How many devices.
        limit_s: When they give up.
        settle: Wait for what is under way, and count it.
        multicast: Whether they listen to casts.

    Returns:
        What was counted.
    """
    forget_peak(rig.broker.pid)
    before = (cpu_s(rig.controller), cpu_s(rig.broker), crowd.cpu_s)
    received_bytes, _ = traffic_bytes(rig.broker.pid)
    began_s, results = crowd.fetch(blob, count=count, limit_s=limit_s, multicast=multicast)
    if settle:
        time.sleep(SETTLE_S)
    after = (cpu_s(rig.controller), cpu_s(rig.broker), crowd.cpu_s)
    return Run(
        began_s=began_s,
        results=tuple(results),
        sent_bytes=traffic_bytes(rig.broker.pid)[0] - received_bytes,
        broker_peak_mb=peak_mb(rig.broker.pid),
        controller_cpu_s=after[0] - before[0],
        broker_cpu_s=after[1] - before[1],
        devices_cpu_s=after[2] - before[2],
    )


def run_raw(crowd: Crowd, blob: str, port: int, *, count: int = 1, limit_s: float) -> Run:
    """Have the same devices read the file from bare TCP connections.

    Args:
        crowd: The devices.
        blob: The file.
        port: Of the server that gives it.
        count: How many devices.
        limit_s: When they give up.

    Returns:
        What was counted.
    """
    began_s, results = crowd.fetch(blob, count=count, limit_s=limit_s, raw_port=port)
    return Run(began_s=began_s, results=tuple(results))


def run_http(crowd: Crowd, blob: str, url: str, *, count: int = 1, limit_s: float) -> Run:
    """Have the same devices fetch the file by HTTP.

    Args:
        crowd: The devices.
        blob: The file.
        url: Where it is.
        count: How many devices.
        limit_s: When they give up.

    Returns:
        What was counted.
    """
    began_s, results = crowd.fetch(blob, count=count, limit_s=limit_s, url=url)
    return Run(began_s=began_s, results=tuple(results))
