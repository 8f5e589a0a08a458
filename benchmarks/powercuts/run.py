"""One run: some devices whose power is cut at the same time, from a start to the figures."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.powercuts.cutting import Calm, Cutter
from benchmarks.powercuts.device import PowerDevice
from benchmarks.powercuts.fleet import PowerFleet
from benchmarks.powercuts.plants import Plant
from benchmarks.powercuts.tally import Tally
from benchmarks.powercuts.watch import Watch

CALM: Final = "calm"
RELEASES: Final = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is to do."""

    kills: int
    seed: int
    devices: int
    rest_every: int = 10
    within_s: float = 60.0
    """In what time a device must serve after a start."""

    plant: Plant | None = None


class PowerCuts:
    """Devices that lose their power.

    Args:
        root: An empty directory with a short path.
        options: What to do.
    """

    def __init__(self, root: Path, options: Options) -> None:
        self._options = options
        self._fleet = PowerFleet(root, releases=RELEASES)
        self._watches: list[Watch] = []
        self.tally = Tally()

    def run(self) -> Tally:
        """Do it all; return what it came to.

        Raises:
            BoxError: The fleet does not start.
            TimeoutError: A device does not install a release even without a power cut.
        """
        options = self._options
        names = [f"power-{number}" for number in range(options.devices)]
        devices: list[PowerDevice] = []
        try:
            devices = self._fleet.start([CALM, *names])
            cutters = [self._cutter(device) for device in devices]
            calm = self._tour(cutters)
            shares = [options.kills // len(names)] * len(names)
            for number in range(options.kills % len(names)):
                shares[number] += 1
            threads = [
                threading.Thread(
                    target=cutter.run, args=(calm,), daemon=True,
                    kwargs={
                        "kills": share, "rest_every": options.rest_every, "plant": options.plant,
                    },
                )
                for cutter, share in zip(cutters[1:], shares, strict=True)
            ]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for watch in self._watches:
                watch.stop()
                self.tally.answers.update(watch.counts)
            left = [line for device in devices for line in device.close()]
            left += self._fleet.stop()
            if left:
                self.tally.violate(f"still there after a stop: {left}")
        return self.tally

    def _cutter(self, device: PowerDevice) -> Cutter:
        watch = Watch(device.name, device.port, self._fleet.releases)
        self._watches.append(watch)
        watch.start()
        return Cutter(
            self._fleet, device, watch, self.tally,
            random.Random(f"{self._options.seed} {device.name}"),
            within_s=self._options.within_s, strace=shutil.which("strace") is not None,
        )  # fmt: skip

    def _tour(self, cutters: list[Cutter]) -> Calm:
        """Let all devices install all releases at once; return how the calm one is then.

        Raises:
            TimeoutError: One of them does not.
        """
        found: dict[int, Calm] = {}

        def tour(number: int) -> None:
            try:
                found[number] = cutters[number].tour()
            except Exception as exc:  # noqa: BLE001 - told below, by the main thread
                print(f"tour: {exc!r}", file=sys.stderr)

        threads = [
            threading.Thread(target=tour, args=(number,), daemon=True)
            for number in range(len(cutters))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(found) != len(cutters):
            raise TimeoutError("a device does not do as it should, even without a power cut")
        return found[0]
