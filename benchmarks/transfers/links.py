"""Devices behind slow links: how much of a link's rate is useful.

Rules:
- All links carry at the same time, each its own device: together they are far below what one
  machine can do.
- Beside each, raw TCP passes another link of the same kind. It shows that the link is what its name
  says. The rate counts every byte to the device, those of MQTT too.
- A file has more chunks than a device asks for at one time. Otherwise those that are sent twice
  would come after all others and cost nothing that is seen.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.harness import Row
from benchmarks.transfers.figures import KB, Run, link_share, needed_of_asked
from benchmarks.transfers.link import Link
from benchmarks.transfers.measuring import run_raw
from benchmarks.transfers.orders import Order
from benchmarks.transfers.pace import LinkShape
from benchmarks.transfers.peers import raw_server
from benchmarks.transfers.rig import Rig

PATIENCE: Final = 1.25
"""A transfer may take so many times what the link alone would."""

LATENCY_S: Final = 0.02
AIM: Final = 0.9
AIMED_BYTES_PER_S: Final = 64_000


def links(rig: Rig, blobs: dict[int, str], *, useful: float) -> list[Row]:
    """Measure links of some rates.

    Args:
        rig: What runs.
        blobs: Which file, by the rate in bytes per second.
        useful: Aim for the share of the bytes asked for that was useful.

    Returns:
        The rows.
    """
    rates = sorted(blobs)
    shapes = [LinkShape(bytes_per_s=rate, latency_s=LATENCY_S) for rate in rates]
    ours, theirs = rig.devices[: len(rates)], rig.devices[len(rates) : 2 * len(rates)]
    limits_s = [PATIENCE * rig.blobs[blobs[rate]].size_bytes / rate for rate in rates]
    with contextlib.ExitStack() as stack:
        files = [rig.files[blobs[rate]] for rate in rates]
        raw_ports = stack.enter_context(raw_server(files))
        ways = [stack.enter_context(Link(rig.address.port, shape)) for shape in shapes]
        raw_ways = [
            stack.enter_context(Link(port, shape))
            for port, shape in zip(raw_ports, shapes, strict=True)
        ]
        ports = {device.replace("-", "_"): way.port for device, way in zip(ours, ways, strict=True)}
        orders = [
            Order(device=device, blob=blobs[rate], limit_s=limit_s)
            for device, rate, limit_s in zip(ours, rates, limits_s, strict=True)
        ]
        crowd = stack.enter_context(rig.crowd(ours, **ports))
        readers = [stack.enter_context(rig.crowd([name])) for name in theirs]
        pool = stack.enter_context(ThreadPoolExecutor())
        raw = [
            pool.submit(run_raw, reader, blobs[rate], way.port, limit_s=limit_s)
            for reader, rate, way, limit_s in zip(readers, rates, raw_ways, limits_s, strict=True)
        ]
        began_s, results = crowd.carry_out(orders)
        raw_runs = [future.result() for future in raw]
    rows: list[Row] = []
    for rate, result, raw_run in zip(rates, results, raw_runs, strict=True):
        run = Run(began_s=began_s, results=(result,))
        name = f"link of {rate / KB:g} KB/s and {LATENCY_S:g} s each way"
        aim = AIM if rate == AIMED_BYTES_PER_S else None
        rows += [
            link_share(name, run, rate, at_least=aim),
            needed_of_asked(f"{name}: useful bytes", run, at_least=useful),
            link_share(f"{name}, raw TCP", raw_run, rate),
        ]
    return rows
