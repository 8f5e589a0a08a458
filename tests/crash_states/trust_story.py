"""A device's trusted metadata, recorded and looked at after a crash: `... trust_story SET FOLDER`.

The folder holds what a controller sends (`prepare`) and the device's state directory. The device
says its floors whenever it has taken metadata over, and which package it has put into service.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from agent.trust.floors import Floors
from agent.trust.keeper import CHECK_EVERY_S, MetadataTrust
from tests.crash_states.recording import say
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from tests.simulators.repository import Repository
from wire.codec import from_json, to_json
from wire.metadata import MetadataFile

NOW_S: Final = 1_800_000_000.0
TRIES: Final = 5
TOO_SLOW: Final = "the check of metadata did not end"
FLOORS, ACCEPTED = "floors ", "accepted "
DIGESTS: Final = ("1" * 64, "2" * 64)


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller sends, one set after another."""

    fleet: str
    sets: tuple[tuple[MetadataFile, ...], ...]


def prepare(folder: Path) -> None:
    """Sign two sets of metadata; the second lists another release and has another key."""
    fleet = Repository(now_s=NOW_S)
    state = folder / "state"
    state.mkdir()
    fleet.write_root(state / "root.json")
    fleet.list("digits", "1.0.0", DIGESTS[0])
    first = fleet.files()
    fleet.now_s += 3600.0
    fleet.rotate("snapshot")
    fleet.list("digits", "2.0.0", DIGESTS[1])
    sent = Sent(fleet=fleet.authored.fleet, sets=(first, fleet.files()))
    (folder / "sent.json").write_bytes(to_json(sent))


def sent_to(folder: Path) -> Sent:
    """Return what the controller sends."""
    return from_json((folder / "sent.json").read_bytes(), Sent, limit_bytes=2**24)


class Believer:
    """What a device believes.

    Args:
        fleet: Name of the fleet.
        state: Its state directory.
    """

    def __init__(self, fleet: str, state: Path) -> None:
        self.clock = FakeClock(NOW_S + 7200.0)
        self.heard = Heard([], [])
        self.trust = MetadataTrust(
            state / "root.json", fleet, state / "trust", self.heard, self.clock
        )

    @property
    def floors(self) -> Floors:
        """Its floors."""
        return self.trust._kept.floors

    def hear(self, files: tuple[MetadataFile, ...]) -> bool:
        """Take metadata; where the machine is so busy that the check does not end, again."""
        is_newer = False
        for _ in range(TRIES):
            self.clock.advance(CHECK_EVERY_S)
            is_newer = self.trust.receive(files, now=True)
            if self.trust.refused != TOO_SLOW:
                break
        return is_newer


def lower(floors: Floors, told: Floors) -> str:
    """Return which floor is lower than what was told before; empty if none is."""
    if (floors.root, floors.time_s) < (told.root, told.time_s):
        return f"root {floors.root} and time {floors.time_s}, not {told.root} and {told.time_s}"
    for name, role in told.roles.items():
        known = floors.roles.get(name)
        if known is None or (known.keys == role.keys and known.version < role.version):
            return f"{known} of {name}, not {role}"
    return ""


def take(sent: Sent, number: int, state: Path, tell: Callable[[str], None]) -> None:
    """Take one set of metadata, and put the release into service that it lists."""
    believer = Believer(sent.fleet, state)
    assert believer.hear(sent.sets[number]), believer.trust.refused
    tell(FLOORS + to_json(believer.floors).decode())
    believer.trust.accept(DIGESTS[number], DIGESTS)
    tell(ACCEPTED + DIGESTS[number])


if __name__ == "__main__":
    take(sent_to(Path(sys.argv[2])), int(sys.argv[1]), Path(sys.argv[2]) / "state", say)
