"""What goes wrong in the field: one row of a table for each fault.

Rules:
- The seed decides which fault meets which device. How far an install has come at that moment is the
  machine's, so two runs with one seed meet the same faults and not the same moments.
- A fault that takes an agent's life or files leaves the device started again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.field.fleet import FieldDevice, FieldFleet
from tests.field.releases import forged

DEAD_S: Final = (0.0, 3.0)
YEAR_S: Final = 365 * 86_400.0
JUMPS_S: Final = (-20 * YEAR_S, -3600.0, -1.0, 0.0, 1.0, 3600.0, 20 * YEAR_S)
BROKER: Final = "broker"
CONTROLLER: Final = "controller"


class Faults:
    """Does faults, one after the other.

    Args:
        fleet: Whose devices they meet.
        rng: Chooses.
    """

    def __init__(self, fleet: FieldFleet, rng: random.Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self.done: Counter[str] = Counter()
        self.broken: list[str] = []
        """What a fault showed that must not be, such as a worker that outlived its agent."""

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(count for name, count in self.done.items() if TABLE[name].kills)

    def next(self) -> None:
        """Do one fault."""
        names = list(TABLE)
        name = self._rng.choices(names, [TABLE[name].weight for name in names])[0]
        device = self._rng.choice(self._fleet.devices)
        try:
            if TABLE[name].act(self, device):
                self.done[name] += 1
        except TimeoutError as exc:
            self.broken.append(str(exc))

    def kill_agent(self, device: FieldDevice) -> bool:
        self._down(device, lambda: None)
        return True

    def kill_worker(self, device: FieldDevice) -> bool:
        return self._fleet.kill_worker(device)

    def kill_controller(self, _device: FieldDevice) -> bool:
        return self._restart(CONTROLLER)

    def kill_broker(self, _device: FieldDevice) -> bool:
        return self._restart(BROKER)

    def cut_link(self, device: FieldDevice) -> bool:
        if device.link is None:
            return False
        device.link.cut()
        return True

    def jump_clock(self, device: FieldDevice) -> bool:
        self._fleet.jump(device, self._rng.choice(JUMPS_S))
        return True

    def fill_disk(self, _device: FieldDevice) -> bool:
        small = [device for device in self._fleet.devices if device.small_disk]
        for device in small:
            self._fleet.fill_disk(device)
            self._down(device, lambda: None)  # it starts on a full disk
            self._fleet.empty_disk(device)
        return bool(small)

    def forge_model(self, device: FieldDevice) -> bool:
        """Put a model that nobody signed in the place of one that is installed."""
        return self._damage(device, "model.json", lambda path: path.write_bytes(forged()))

    def flip_manifest(self, device: FieldDevice) -> bool:
        return self._damage(device, "manifest.json", self._flip)

    def flip_state(self, device: FieldDevice) -> bool:
        return self._damage(device, "state.json", self._flip)

    def cut_off_spool(self, device: FieldDevice) -> bool:
        return self._damage(device, "telemetry.db", lambda path: path.write_bytes(b""))

    def forge_while_running(self, device: FieldDevice) -> bool:
        """As `forge_model`, under a running agent; the next load of the variant must refuse it."""
        found = self._files(device, "model.json")
        if not found:
            return False
        chosen = self._rng.choice(found)
        chosen.chmod(0o600)
        chosen.write_bytes(forged())
        return self._fleet.kill_worker(device)

    def _damage(self, device: FieldDevice, name: str, change: Callable[[Path], object]) -> bool:
        found: list[Path] = []

        def act() -> None:
            found.extend(self._files(device, name))
            if found:
                chosen = self._rng.choice(found)
                chosen.chmod(0o600)
                change(chosen)

        self._down(device, act)
        return bool(found)

    def _files(self, device: FieldDevice, name: str) -> list[Path]:
        return sorted(path for path in device.state.rglob(name) if path.is_file())

    def _flip(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        path.write_bytes(content)

    def _down(self, device: FieldDevice, meanwhile: Callable[[], None]) -> None:
        """Kill an agent, do something to its files, and start it again."""
        try:
            self._fleet.kill_device(device)
        finally:
            meanwhile()
            time.sleep(self._rng.uniform(*DEAD_S) / 10)
            self._fleet.start_device(device)

    def _restart(self, name: str) -> bool:
        self._fleet.count_files()
        self._fleet.box.kill(name)
        time.sleep(self._rng.uniform(*DEAD_S))
        self._fleet.box.start(name)
        return True


class Fault(NamedTuple):
    """A row of the table."""

    act: Callable[[Faults, FieldDevice], bool]
    """Does it; returns whether it could."""

    weight: float
    kills: bool = False
    """Whether it kills a process."""


TABLE: Final[dict[str, Fault]] = {
    "kill an agent": Fault(Faults.kill_agent, 30, kills=True),
    "kill a worker": Fault(Faults.kill_worker, 20, kills=True),
    "kill the controller": Fault(Faults.kill_controller, 3, kills=True),
    "kill the broker": Fault(Faults.kill_broker, 3, kills=True),
    "cut a slow link": Fault(Faults.cut_link, 12),
    "let a clock jump": Fault(Faults.jump_clock, 10),
    "fill a disk and kill the agent": Fault(Faults.fill_disk, 5, kills=True),
    "kill an agent and forge a model": Fault(Faults.forge_model, 6, kills=True),
    "kill an agent and flip a bit of a manifest": Fault(Faults.flip_manifest, 4, kills=True),
    "kill an agent and flip a bit of its state": Fault(Faults.flip_state, 3, kills=True),
    "kill an agent and empty its spool": Fault(Faults.cut_off_spool, 2, kills=True),
    "forge a model and kill the worker": Fault(Faults.forge_while_running, 4, kills=True),
}
