"""The driver of the benchmark's devices, as the benchmark sees it.

Rules:
- Every device is a process; what they cost together is read, so that one sees whether they are what
  limits a figure.
- The driver's processes are ended by their ids, and none outlives the `with` block.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, Self

import msgspec
import psutil

from benchmarks.programs import program
from benchmarks.transfers.orders import Order, Result, Setup
from benchmarks.transfers.usage import cpu_s

END_S: Final = 10.0


class Crowd:
    """Devices that are connected and wait for orders.

    Args:
        setup: Who they are.
    """

    def __init__(self, setup: Setup) -> None:
        self.names = tuple(setup.devices)
        file = Path(setup.folder) / f"setup-{self.names[0]}.json"
        file.write_bytes(msgspec.json.encode(setup))
        self._process = subprocess.Popen(
            [sys.executable, "-P", program("fetching_devices"), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._all: list[psutil.Process] = []

    def __enter__(self) -> Self:
        try:
            self._read()
        except RuntimeError:
            self._end()
            raise
        own = psutil.Process(self._process.pid)
        self._all = [own, *own.children()]
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end()

    @property
    def cpu_s(self) -> float:
        """The processor time that all devices took so far."""
        return sum(cpu_s(process) for process in self._all)

    def carry_out(self, orders: Sequence[Order]) -> tuple[float, list[Result]]:
        """Have devices fetch at the same time.

        Args:
            orders: At most one for each device.

        Returns:
            When they began, and their results.

        Raises:
            RuntimeError: The driver ended.
        """
        if self._process.stdin is None:
            raise RuntimeError("the driver has no input")
        began_s = time.monotonic()
        print(msgspec.json.encode(orders).decode(), file=self._process.stdin, flush=True)
        return began_s, msgspec.json.decode(self._read(), type=list[Result])

    def fetch(
        self,
        blob: str,
        *,
        count: int = 1,
        limit_s: float,
        raw_port: int = 0,
        url: str = "",
        multicast: bool = False,
    ) -> tuple[float, list[Result]]:
        """Have the first of the devices fetch the same.

        Args:
            blob: What.
            count: How many devices.
            limit_s: When they give up.
            raw_port: Of a raw TCP server instead of ours.
            url: Where to fetch it by HTTP instead of over messages.
            multicast: Whether they listen to casts.

        Returns:
            When they began, and their results.
        """
        how: Literal["package", "multicast", "raw"] = "multicast" if multicast else "package"
        orders: Iterable[Order] = (
            Order(
                device=name,
                blob=blob,
                limit_s=limit_s,
                how="raw" if raw_port else "http" if url else how,
                raw_port=raw_port,
                url=url,
            )
            for name in self.names[:count]
        )
        return self.carry_out(tuple(orders))

    def _read(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the devices ended")
        return line

    def _end(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            for process in self._all[1:]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
