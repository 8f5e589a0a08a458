"""Transfers that are interrupted in the middle: how much is sent a second time."""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Row, alone
from benchmarks.transfers.figures import MB, Run, incomplete, sent_again_percent
from benchmarks.transfers.link import Link
from benchmarks.transfers.orders import Order
from benchmarks.transfers.pace import LinkShape
from benchmarks.transfers.rig import Rig
from benchmarks.transfers.usage import traffic_bytes

LIMIT_S: Final = 30.0
AIM_PERCENT: Final = 1.0
UNIT: Final = "% of the file"
SHAPE: Final = LinkShape(bytes_per_s=20e6, latency_s=0.005)
"""A fast network; what is on its way when it is cut is lost."""


def resumed(rig: Rig, blob: str, *, rounds: int) -> list[Row]:
    """Measure both kinds of interruption.

    Args:
        rig: What runs.
        blob: The file.
        rounds: How many.

    Returns:
        The rows.
    """
    size_bytes = rig.blobs[blob].size_bytes
    killed = [_killed(rig, blob) for _ in range(rounds)]
    cut = [_cut(rig, blob) for _ in range(rounds)]
    return [
        *_rows(f"device killed at half of {size_bytes / MB:g} MB", killed, size_bytes),
        *_rows(f"link cut at half of {size_bytes / MB:g} MB", cut, size_bytes),
    ]


def _rows(name: str, counted: list[tuple[Run, int]], size_bytes: int) -> list[Row]:
    title, aim = f"{name}: sent again", f"<= {AIM_PERCENT:g} {UNIT}"
    if (row := incomplete(title, [run for run, _ in counted], unit=UNIT, aim=aim)) is not None:
        return [row]
    again = [sent_again_percent(sent_bytes, size_bytes) for _, sent_bytes in counted]
    return [alone(title, again, unit=UNIT, at_most=AIM_PERCENT)]


def _killed(rig: Rig, blob: str) -> tuple[Run, int]:
    """Kill the device's process and start it again; count what the broker sent to both."""
    _, before_bytes = traffic_bytes(rig.broker.pid)
    half_bytes = rig.blobs[blob].size_bytes // 2
    order = Order(device=rig.devices[0], blob=blob, limit_s=LIMIT_S, die_at_bytes=half_bytes)
    with rig.crowd(rig.devices[:1]) as crowd:
        crowd.carry_out([order])
    with rig.crowd(rig.devices[:1]) as crowd:
        began_s, results = crowd.fetch(blob, limit_s=LIMIT_S)
    _, after_bytes = traffic_bytes(rig.broker.pid)
    return Run(began_s=began_s, results=tuple(results)), after_bytes - before_bytes


def _cut(rig: Rig, blob: str) -> tuple[Run, int]:
    """Cut the link, which comes back at once; count what the broker sent into it.

    Raises:
        RuntimeError: The file was too small for it.
    """
    _, before_bytes = traffic_bytes(rig.broker.pid)
    half_bytes = rig.blobs[blob].size_bytes // 2
    device = rig.devices[0]
    with Link(rig.address.port, SHAPE, cut_at_bytes=half_bytes) as link:
        port = {device.replace("-", "_"): link.port}
        with rig.crowd([device], **port) as crowd:
            began_s, results = crowd.fetch(blob, limit_s=LIMIT_S)
        if link.cuts != 1:
            raise RuntimeError("the link was not cut")
    _, after_bytes = traffic_bytes(rig.broker.pid)
    return Run(began_s=began_s, results=tuple(results)), after_bytes - before_bytes
