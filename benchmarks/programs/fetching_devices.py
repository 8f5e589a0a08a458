"""Devices that fetch, a light process each: `fetching_devices.py SETUP.json`.

The modules are loaded once, then every device is a fork of this process with a connection of its
own, so that none waits for another's interpreter. A line on the standard input is a list of orders,
which begin together; the line that answers it is the list of their results. It ends with its input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from benchmarks.transfers.device import serve
from benchmarks.transfers.orders import Order, Result, Setup


class Child(NamedTuple):
    """One device's process and the pipes to it."""

    pid: int
    orders: BinaryIO
    results: BinaryIO


def fork(name: str, setup: Setup, siblings: list[Child]) -> Child:
    """Start a device.

    Args:
        name: The device.
        setup: What it has to know.
        siblings: Those that run, whose pipes it must not keep open.

    Returns:
        Its process.
    """
    order_end, order_start = os.pipe()
    result_end, result_start = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for descriptor in (order_start, result_end):
                os.close(descriptor)
            for sibling in siblings:
                sibling.orders.close()
                sibling.results.close()
            serve(name, setup, order_end, result_start)
            status = 0
        except TimeoutError as exc:
            print(exc, file=sys.stderr)
        finally:
            os._exit(status)
    os.close(order_end)
    os.close(result_start)
    return Child(pid, os.fdopen(order_start, "wb", buffering=0), os.fdopen(result_end, "rb"))


def answer(children: dict[str, Child], orders: list[Order]) -> list[Result]:
    """Have orders carried out at the same time.

    Args:
        children: The devices' processes by name.
        orders: One for each device that is to do something.

    Returns:
        Their results in the same order; a device that died has no useful bytes and a fault.
    """
    for order in orders:
        children[order.device].orders.write(msgspec.json.encode(order) + b"\n")
    results = []
    for order in orders:
        line = children[order.device].results.readline()
        results.append(
            msgspec.json.decode(line, type=Result)
            if line
            else Result(device=order.device, fault="its process died")
        )
    return results


def main() -> int:
    """Run all devices; return the exit status."""
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Setup)
    children: dict[str, Child] = {}
    for name in setup.devices:
        children[name] = fork(name, setup, list(children.values()))
    connected = all(child.results.readline() for child in children.values())
    if connected:
        print(flush=True)
        for line in sys.stdin:
            orders = msgspec.json.decode(line, type=list[Order])
            print(msgspec.json.encode(answer(children, orders)).decode(), flush=True)
    for child in children.values():
        child.orders.close()
    for child in children.values():
        os.waitpid(child.pid, 0)
    return 0 if connected else 1


if __name__ == "__main__":
    sys.exit(main())
