"""Installs on a device, to be recorded and looked at after a crash: `... device_story NAME FOLDER`.

Everything but processes, network and time is the agent's own code (`tests.simulators.device`).
The device says which revision it has accepted with its first report of it, and which package serves
when it reports the end of an install.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash_states.recording import say
from tests.simulators.archives import Held, file_of
from tests.simulators.device import SimulatedDevice
from tests.simulators.packages import SignedPackage, two_variants
from wire.installs import InstallReport

OLDEST: Final = two_variants("0.9.0", best="oldest best", small="oldest small")
OLD: Final = two_variants("1.0.0", best="old best", small="old small")
NEW_BEST: Final = "new best " * 300
NEW: Final = two_variants("2.0.0", best=NEW_BEST, small="new small")
BAD: Final = two_variants("2.0.1", best="bad best", small="bad small")
RELEASES: Final = {each.digest: each for each in (OLDEST, OLD, NEW, BAD)}
GOOD: Final = {
    package.files[f"variants/{name}/model.json"]
    for package in (OLDEST, OLD, NEW)
    for name in ("best", "small")
}
"""What may serve."""

ACCEPTED, SERVES, STORED = "accepted ", "serves ", "stored"
MAY_DIFFER: Final = {"preloaded", ".preloaded.new"}
"""A link to what was handed over last, and its fixed temporary name: the next one replaces both."""


@dataclass(frozen=True)
class Story:
    """What a device has, and what comes next."""

    had: tuple[SignedPackage, ...]
    """What was installed before, in this order."""

    takes: SignedPackage
    is_handed_over: bool = False
    """Whether it comes from a file first."""

    ends: tuple[str, str] = ("succeeded", "")
    """How it ends, with the code of the error; empty for any."""

    fails_late: bool = False
    """Whether the best variant answers wrongly from when it serves."""

    @property
    def revision(self) -> int:
        """The revision of what is recorded."""
        return len(self.had) + 1


STORIES: Final = {
    "first": Story((), OLD),
    "update": Story((OLDEST, OLD), NEW),
    "failing": Story((OLD,), BAD, ends=("failed", "agent.golden")),
    "failing while it serves": Story((OLDEST, OLD), NEW, ends=("failed", ""), fails_late=True),
    "failing with nothing before": Story((), NEW, ends=("failed", ""), fails_late=True),
    "by hand": Story((OLD,), NEW, is_handed_over=True),
}


def device_in(root: Path) -> SimulatedDevice:
    """Return a device on a directory; it is not booted."""
    device = SimulatedDevice(root)
    device.bad_golden.add("bad best")
    return device


def prepare(story: Story, root: Path) -> None:
    """Bring a device to where a story begins."""
    if not story.had:
        return
    device = device_in(root)
    device.boot()
    for revision, package in enumerate(story.had, 1):
        device.install(revision, package)


def go_on(story: Story, root: Path, tell: Callable[[str], None]) -> None:
    """Do what is recorded."""
    device = device_in(root)

    def told(report: InstallReport) -> None:
        if report.outcome == "running":
            tell(f"{ACCEPTED}{report.revision}")
            if story.fails_late and report.phase == "confirming":
                device.bad_golden.add(NEW_BEST)
        else:
            tell(f"{SERVES}{report.active}")

    device.heard.on_tell = told
    device.boot()
    if story.is_handed_over:
        device.hand_over(Held(file_of(story.takes)))
        tell(STORED)
    device.install(story.revision, story.takes)


def after_crash(story: Story, root: Path, said: tuple[str, ...]) -> str:
    """Boot from a directory, go on as a fleet would, and return what is wrong; empty if nothing."""
    device = device_in(root)
    if story.fails_late:
        device.bad_golden.add(NEW_BEST)
    device.boot()
    return at_boot(story, device, said) or later(story, device, is_stored=STORED in said)


def at_boot(story: Story, device: SimulatedDevice, said: tuple[str, ...]) -> str:
    """Return what is wrong just after the boot."""
    told = [each.removeprefix(SERVES) for each in said if each.startswith(SERVES)]
    before = story.had[-1].digest if story.had else None
    may_serve = {told[-1]} if told else {str(before), story.takes.digest}
    serves = device.serving.active.digest if device.serving.active is not None else None
    if str(serves) not in may_serve:
        return f"{serves} serves, not one of {sorted(may_serve)}"
    accepted = [int(each.removeprefix(ACCEPTED)) for each in said if each.startswith(ACCEPTED)]
    if device.files.floor < max(accepted, default=0) or device.files.lost or device.faults:
        return f"the floor is {device.files.floor} after {accepted}: {device.faults}"
    for digest in device.slots.whole():
        for path, content in RELEASES[digest].files.items():
            place = device.slots.directory(digest) / path
            if not place.is_file() or place.read_bytes() != content:
                return f"{path} is lost or damaged in a whole package"
    return ""


def later(story: Story, device: SimulatedDevice, *, is_stored: bool) -> str:
    """Let the device go on, and return what is wrong.

    The controller says again what it wants, and then orders what the device had once. What was
    stored from a file comes from nowhere else.
    """
    if not is_stored:
        device.server.add(*story.takes.blobs)
    device.machine.run()
    device.accept(story.revision, story.takes)
    device.machine.run()
    outcome = device.heard.outcomes[-1]
    if outcome.outcome != story.ends[0] or story.ends[1] not in {"", outcome.error_code}:
        return f"it ends with {outcome.outcome}: {outcome.detail}"
    device.install(story.revision + 1, OLDEST)
    outcome = device.heard.outcomes[-1]
    if (outcome.outcome, outcome.active) != ("succeeded", OLDEST.digest):
        return f"the next release does not come: {outcome.outcome} {outcome.detail}"
    if not set(device.served) <= GOOD:
        return f"{set(device.served) - GOOD} has served"
    return ""


def paths_in(root: Path) -> frozenset[str]:
    """Return what is in a directory, by name."""
    return frozenset(str(path.relative_to(root)) for path in root.rglob("*"))


if __name__ == "__main__":
    go_on(STORIES[sys.argv[1]], Path(sys.argv[2]), say)
