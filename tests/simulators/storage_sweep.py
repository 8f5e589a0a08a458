"""An update during which each write fails in turn: `python -m ... DIRECTORY [SAMPLES] [SEED]`.

The library of `failing_storage` is preloaded. It prints a line for each promise that is not kept,
and how many faults were tried. Without SAMPLES it tries each write in each way.

After any fault the device serves the old package or the new one, also after a restart while the
storage still fails. It loses no record and no floor, and says what failed unless the update ended
as it does without the fault. When the storage is well again, the release is taken, and nothing is
left over.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.errors import ConfirmError, StorageError, StorageFullError
from agent.install.states import State
from tests.simulators.device import SimulatedDevice
from tests.simulators.failing_storage import WAYS, Refusal, Storage
from tests.simulators.packages import two_variants
from wire.errors import FleetError

OLD: Final = two_variants("1.0.0", best="old best", small="old small")
NEW: Final = two_variants("2.0.0", best="new best", small="new small")
GOOD: Final = {b"old best", b"old small", b"new best", b"new small"}
STORAGE_CODES: Final = (StorageError.code, StorageFullError.code)
BAD_AFTER: Final = {"good": "", "bad": "new best"}
"""By the name of a story: the variant that answers wrongly once it has been put into service."""


class Story:
    """One update during which the storage fails.

    Args:
        root: Where the device keeps its state.
        storage: What fails.
        bad: The variant that answers wrongly after the switch; empty for none.
    """

    def __init__(self, root: Path, storage: Storage, bad: str) -> None:
        root.mkdir(parents=True)
        self.storage = storage
        self.device = SimulatedDevice(root)
        self.device.boot()
        self.device.install(1, OLD)
        self.device.heard.reports.clear()
        self.said: list[str] = []
        self.ended_as_usual = False
        self.wrong: list[str] = []
        if bad:
            self.device.hook = lambda where, at: self._turn_bad(bad, where, at)

    def _turn_bad(self, bad: str, where: str, at: State) -> None:
        if (where, at) == ("effect", State.CONFIRMING):
            self.device.bad_golden.add(bad)

    def run(self, refusal: Refusal) -> int:
        """Update while the storage fails; return how many writes there were."""
        self.storage.fails(refusal)
        self._order(2)
        counted = self.storage.counted
        if refusal.first:
            self._look("after the fault")
            self._restart("while the storage fails")
            self.storage.is_well()
            self._restart("when the storage is well again")
            if not (self.said or self.ended_as_usual):
                self.wrong.append("nothing was said of the storage")
        self.storage.is_well()
        return counted

    def recover(self) -> None:
        """Order the release again with a storage and a package that are well."""
        self.device.hook = lambda _where, _at: None
        self.device.bad_golden.clear()
        for revision in (3, 4):  # the second comes after all that the first left is gone
            self._order(revision)
            active = self.device.adaptation.active()
            if active != (NEW.digest, "best"):
                self.wrong.append(f"{active} serves after all; said: {self.said}")

    def _order(self, revision: int) -> None:
        device = self.device
        try:
            device.install(revision, NEW)
        except StorageError as exc:  # the thread of a model would try again
            self.said.append(str(exc))
        codes = {report.error_code for report in device.heard.outcomes}
        self.ended_as_usual = codes == {ConfirmError.code if device.bad_golden else ""}
        self.said += [
            f"{report.error_code}: {report.detail}"
            for report in device.heard.outcomes
            if report.error_code in STORAGE_CODES
        ]
        self.said += [reason for kind, reason, _ in device.heard.events if kind == "storage"]
        device.heard.reports.clear()
        device.heard.events.clear()

    def _restart(self, when: str) -> None:
        self.device.lose_power()
        try:
            self.device.boot()
        except FleetError as exc:
            self.wrong.append(f"{when} the device does not start: {exc}")
            return
        if self.device.faults:
            self.wrong.append(f"{when} a record is damaged: {self.device.faults}")
        try:
            self.device.machine.run()
        except StorageError as exc:
            self.said.append(str(exc))
        self._look(when)

    def _look(self, when: str) -> None:
        device, right = self.device, {OLD.digest, NEW.digest}
        if self.device.bad_golden and device.store.state.state is State.IDLE:
            right = {OLD.digest}
        if device.adaptation.active()[0] not in right:
            self.wrong.append(f"{when} {device.adaptation.active()} serves")
        if device.slot.current() not in right:
            self.wrong.append(f"{when} current is {device.slot.current()}")
        if not set(device.served) <= GOOD:
            self.wrong.append(f"{when} something else served")
        if device.files.lost or device.files.floor < 1 or device.files.state.revision < 1:
            self.wrong.append(f"{when} the record is lost")


def names(root: Path) -> set[str]:
    """Return what lies in a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def faults(counted: int, samples: int, rng: random.Random) -> Iterator[Refusal]:
    """Yield what to try: all of it, or a part that is spread evenly over the writes."""
    for way in WAYS:
        places = list(range(1, counted + 1))
        if samples:
            step = max(counted / samples, 1.0)
            first = rng.uniform(0, step)
            places = sorted({int(first + step * n) + 1 for n in range(samples)})
        for place in places:
            yield replace(way, first=place)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(directory: Path, samples: int, seed: int) -> int:
    """Sweep; return how many promises were not kept."""
    storage, rng, wrong, tried = Storage(directory), random.Random(seed), 0, 0
    for story, bad in BAD_AFTER.items():
        root = directory / story
        usual = Story(root, storage, bad)
        counted = usual.run(Refusal(first=0))
        usual.recover()
        left = names(root)
        for refusal in faults(counted, samples, rng):
            shutil.rmtree(root)
            told = Story(root, storage, bad)
            told.run(refusal)
            told.recover()
            if more := names(root) ^ left:
                told.wrong.append(f"left over, or missing: {sorted(more)}")
            for line in told.wrong:
                say(f"{story}, {refusal}: {line}")
            wrong, tried = wrong + len(told.wrong), tried + 1
        shutil.rmtree(root)
        say(f"{story}: {counted} writes, {tried} faults tried, seed {seed}")
    return wrong


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    sys.exit(bool(main(Path(place), *([int(n) for n in numbers] + [0, 0])[:2])))
