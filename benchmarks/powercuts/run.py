"""One run: some devices whose power is cut at the same time, from a start to the figures."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from benchmarks.powercuts.cutting import WITHIN_S, Calm, Cutter
from benchmarks.powercuts.device import PowerDevice
from benchmarks.powercuts.fleet import PowerFleet
from benchmarks.powercuts.plants import Plant
from benchmarks.powercuts.tally import Tally
from benchmarks.powercuts.watch import Watch

RELEASES: Final = 4


class PowerCuts:
    """Devices that lose their power; use it in a `with` block.

    All of them first install all releases, at the same time and without a power cut: one of them
    then tells how long an install takes beside the others, and what lies on such a device.

    Args:
        root: An empty directory with a short path.
        seed: Of all that is chosen.
        devices: How many.
        releases: How many there are.
    """

    def __init__(self, root: Path, *, seed: int, devices: int, releases: int = RELEASES) -> None:
        self._seed = seed
        self._names = [f"power-{number}" for number in range(devices)]
        self.devices: list[PowerDevice] = []
        self._watches: list[Watch] = []
        self._cutters: list[Cutter] = []
        self._calm: list[Calm] = []
        self.fleet = PowerFleet(root, releases=releases)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.devices = self.fleet.start(self._names)
        self._cutters = [self._cutter(device) for device in self.devices]
        _at_once([self._tour(cutter) for cutter in self._cutters])
        if len(self._calm) != len(self._cutters):
            raise TimeoutError("a device does not do as it should, even without a power cut")

    def cut(
        self,
        tally: Tally,
        *,
        kills: int,
        rest_every: int,
        within_s: float = WITHIN_S,
        plants: Sequence[Plant] = (),
    ) -> None:
        """Cut powers so many times in all.

        Args:
            tally: Counts.
            kills: How often.
            rest_every: A device comes to rest after so many power cuts.
            within_s: In what time a device must serve after a start.
            plants: Faults to plant on each device, one after each of its first power cuts.
        """
        shares = [kills // len(self._cutters)] * len(self._cutters)
        for number in range(kills % len(shares)):
            shares[number] += 1

        def run(cutter: Cutter, share: int) -> Callable[[], None]:
            return lambda: cutter.run(
                self._calm[0], tally,
                kills=share, rest_every=rest_every, within_s=within_s, plants=plants,
            )  # fmt: skip

        before = [watch.counts.copy() for watch in self._watches]
        _at_once([run(*each) for each in zip(self._cutters, shares, strict=True)])
        for watch, counts in zip(self._watches, before, strict=True):
            tally.answers.update(watch.counts - counts)

    def stop(self) -> list[str]:
        """End everything; return what was left and had to be killed."""
        for watch in self._watches:
            watch.stop()
        left = [line for device in self.devices for line in device.close()]
        return left + self.fleet.stop()

    def _cutter(self, device: PowerDevice) -> Cutter:
        watch = Watch(device.name, device.port, self.fleet.releases)
        self._watches.append(watch)
        watch.start()
        rng = random.Random(f"{self._seed} {device.name}")
        has_strace = shutil.which("strace") is not None
        return Cutter(self.fleet, device, watch, rng, strace=has_strace)

    def _tour(self, cutter: Cutter) -> Callable[[], None]:
        def tour() -> None:
            try:
                self._calm.append(cutter.tour())
            except Exception as exc:  # noqa: BLE001 - the main thread counts who came through
                print(f"without a power cut: {exc!r}", file=sys.stderr)

        return tour


def _at_once(works: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
