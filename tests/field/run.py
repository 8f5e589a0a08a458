"""A fleet in the field, in a quarter of an hour: `make field`.

Real agents behind a real broker and a controller, on loopback. An operator rolls out release after
release, good ones and bad ones. An application on each device asks without end. Meanwhile processes
are killed, files damaged, models forged, a disk filled, links cut, clocks moved by years, and a
hostile client attacks everything that listens.

Invariants; a run that breaks one ends with status 1:
- No answer is wrong: each comes from a release and variant that were signed and good, and has
  exactly their numbers. No byte that nobody signed is ever served.
- No request is lost: an agent that lives answers every request, if only with 503 and `Retry-After`.
  Requests to an agent that was killed meanwhile are counted apart.
- An agent that is started serves again within four minutes, whatever was done to its files.
- No worker outlives its killed agent by 30 s, and nothing runs when all was stopped.
- When it is quiet again, one more rollout reaches every device; each answers with it, is online and
  has not drifted.
- No bad release becomes active anywhere.
- Broker, controller and agents hold no more files open than soon after their start, but for a few;
  while clients attack, but for one for each connection of theirs.

Source:
    The kinds of faults: what devices met in trials of this system, and Basiri et al., Chaos
    Engineering (IEEE Software 33(3), 2016).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from examples.digits.box import Box, BoxError, until
from packager.package.keys import load_key
from tests.field.clients import ANSWER_S, BAD_ANSWERS, Application, Tally, judged
from tests.field.faults import Faults
from tests.field.fleet import FieldDevice, FieldFleet
from tests.field.hostile import UNFINISHED, HostileClient
from tests.field.releases import Releases

SELECTOR: Final = "fleet=field"
ROLLOUT_S: Final = 60.0
"""How long the operator waits for a rollout before the next one."""

CALM_S: Final = 240.0
MORE_FILES: Final = 16
"""More connections and files may be open at the end than at the beginning, such as of databases."""

BAD_EVERY: Final = 4
MOST_REST_S: Final = 1.5


class Operator:
    """Rolls out release after release.

    Args:
        fleet: For which.
        releases: Makes them.
    """

    def __init__(self, fleet: FieldFleet, releases: Releases) -> None:
        self._fleet = fleet
        self._releases = releases
        self._number = 0
        self.ends: Counter[str] = Counter()
        """How rollouts ended."""

    def roll_out(self, *, bad: bool) -> str:
        """Publish a release and create its rollout; return the rollout's identifier."""
        self._number += 1
        box = self._fleet.box
        directory = self._releases.make(self._number, bad=bad)
        box.fleet("release", "publish", directory)
        made = box.fleet_json(
            "rollout", "create", f"digits:{self._number}.0.0", "--selector", SELECTOR,
            "--stage", "25%", "--stage", "100%", "--deadline", "1h",
            "--max-failures", "0" if bad else "1000",
        )  # fmt: skip
        return str(made["id"])

    def run(self, stopping: threading.Event) -> None:
        """Go on until told to stop."""
        while not stopping.is_set():
            bad = self._number % BAD_EVERY == BAD_EVERY - 1
            try:
                self.abort_all()
                rollout = self.roll_out(bad=bad)
            except BoxError as exc:  # the next try is another release
                self.ends[f"not created: {str(exc).partition(': ')[2][:80]}"] += 1
                stopping.wait(2.0)
                continue
            end = self._wait(rollout, stopping)
            self.ends[f"{'bad' if bad else 'good'} release: {end}"] += 1

    def _wait(self, rollout: str, stopping: threading.Event) -> str:
        end_s = time.monotonic() + ROLLOUT_S
        while time.monotonic() < end_s and not stopping.wait(1.0):
            try:
                state = str(self._fleet.box.api(f"/v1/rollouts/{rollout}")["state"])
                if state not in {"running", "paused"}:
                    return state
            except BoxError:
                continue
        try:
            self._fleet.box.fleet("rollout", "abort", rollout)
        except BoxError:
            return "could not be aborted: the controller was down"
        return "aborted: not done in a minute, or all was over"

    def abort_all(self) -> None:
        """Abort what has not ended: an order may have met a dead controller.

        Raises:
            BoxError: The controller does not answer.
        """
        for rollout in self._fleet.box.api("/v1/rollouts"):
            if rollout["state"] in {"running", "paused"}:
                self._fleet.box.fleet("rollout", "abort", rollout["id"])

    @property
    def newest(self) -> str:
        """The newest release."""
        return f"digits:{self._number}.0.0"


class Field:
    """One run.

    Args:
        root: An empty directory with a short path.
        seed: Of everything that is chosen.
        count: How many devices.
        kills: How many kills to do.
        most_s: The run calms down after this time, however many kills were done.
    """

    def __init__(self, root: Path, *, seed: int, count: int, kills: int, most_s: float) -> None:
        self.fleet = FieldFleet(Box(root / "box"), count)
        self.faults = Faults(self.fleet, random.Random(seed))
        self.hostile = HostileClient(self.fleet, random.Random(seed + 1))
        self.tally = Tally()
        self._kills = kills
        self._most_s = most_s
        # Between faults there is time for rollouts to come some way.
        self._rest_s = min(MOST_REST_S, 0.7 * most_s / kills)
        self.broken: list[str] = []
        """The invariants that were broken."""

    def run(self) -> None:
        """Do it all.

        Raises:
            BoxError: The fleet could not be started.
        """
        try:
            self._run()
        finally:
            left = self.fleet.stop()
        left += self.fleet.orphans()
        if left:
            self.broken.append(f"still running after the stop: {left}")
        self.broken += [*self.faults.broken, *self.fleet.broken]

    def _run(self) -> None:
        fleet = self.fleet
        fleet.start()
        key = load_key(fleet.box.release_key)
        self.releases = Releases(fleet.box.root, key)
        self.operator = Operator(fleet, self.releases)
        first = self.operator.roll_out(bad=False)
        until("the first rollout", lambda: self._state(first) == "succeeded", CALM_S)
        files = fleet.count_files()
        say(f"{len(fleet.devices)} devices serve {self.operator.newest}")
        self.hostile.start(fleet.box.fleet_json("token", "create")["token"])
        clients = [self._application(device) for device in fleet.devices]
        stopping = threading.Event()
        operator = threading.Thread(target=self.operator.run, args=(stopping,), daemon=True)
        operator.start()
        self._disturb()
        stopping.set()
        operator.join()
        self.hostile.stop()
        self._calm_down()
        silent = sum(not client.stop() for client in clients)
        if silent:
            self.broken.append(f"{silent} clients ended before they were told to")
        self._check_files(files)
        self._check_service()
        self._check_answers()

    def _application(self, device: FieldDevice) -> Application:
        client = Application(
            device.name, device.port, self.releases, self.tally, lambda: device.serves_since_s
        )
        client.start()
        return client

    def _disturb(self) -> None:
        end_s, told = time.monotonic() + self._most_s, 0
        while self.faults.kills < self._kills and time.monotonic() < end_s:
            self.faults.next()
            if self.faults.kills >= told + 20:
                told = self.faults.kills
                say(f"{told} kills; answers: {shown(self.tally.counts)}")
            time.sleep(self._rest_s)

    def _calm_down(self) -> None:
        """Roll out once more, with nothing in its way."""
        for device in self.fleet.devices:
            self.fleet.empty_disk(device)
        last = ""
        try:
            until("the controller", lambda: self.fleet.box.api("/v1/health") is not None, CALM_S)
            self.operator.abort_all()
            last = self.operator.roll_out(bad=False)
            until("the last rollout", lambda: self._state(last) == "succeeded", CALM_S)
            until("every device on it", lambda: not self._astray(), CALM_S)
        except BoxError as exc:
            self.broken.append(f"{exc}; astray: {self._astray()}")
            self.broken.append(self.fleet.box.fleet("rollout", "show", last, check=False))

    def _astray(self) -> list[dict[str, Any]]:
        named = {device.name for device in self.fleet.devices}
        return [
            {key: d[key] for key in ("id", "online", "drifted", "release", "phase", "last_error")}
            for d in self.fleet.shown()
            if d["id"] in named
            and not (d["online"] and not d["drifted"] and d["release"] == self.operator.newest)
        ]

    def _state(self, rollout: str) -> str:
        return str(self.fleet.box.api(f"/v1/rollouts/{rollout}")["state"])

    def _check_files(self, before: dict[str, int]) -> None:
        now = self.fleet.count_files()
        for name, first in before.items():
            most = self.fleet.most_files[name]
            if now.get(name, 0) > first + MORE_FILES or most > first + MORE_FILES + UNFINISHED:
                self.broken.append(
                    f"{name}: {first} files at first, {most} at most, {now[name]} now"
                )

    def _check_service(self) -> None:
        """Ask every device once for the newest release."""
        for device in self.fleet.devices:
            client = http.client.HTTPConnection("127.0.0.1", device.port, timeout=ANSWER_S)
            with contextlib.closing(client):
                try:
                    answer = judged(client, self.releases.answers)
                except (OSError, http.client.HTTPException) as exc:
                    answer = ("lost", repr(exc))
            if answer != ("right", self.operator.newest):
                self.broken.append(f"{device.name} answers at the end: {answer}")

    def _check_answers(self) -> None:
        counts = self.tally.counts
        self.broken += [f"{counts[kind]} {kind}" for kind in BAD_ANSWERS if counts[kind]]
        if not counts["right"]:
            self.broken.append("no answer came")


def shown(counts: Counter[str]) -> str:
    """Return counts as text."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(field: Field, took_s: float) -> None:
    """Print what was done and what was counted."""
    say(f"\nin {took_s:.0f} s: {field.faults.kills} kills")
    for name, count in sorted(field.faults.done.items()):
        say(f"  {count:5}  {name}")
    if field.fleet.no_small_disks:
        say(f"  not done: full disks, because {field.fleet.no_small_disks}")
    say("the hostile client")
    for name, count in sorted(field.hostile.tried.items()):
        say(f"  {count:5}  {name}")
    say("rollouts")
    for name, count in sorted(field.operator.ends.items()):
        say(f"  {count:5}  {name}")
    counts = field.tally.counts
    say("requests")
    for name in ("right", "refused", "cut", *BAD_ANSWERS):
        say(f"  {counts[name]:5}  {MEANINGS[name]}")
    for fault in (*field.tally.faults, *field.broken):
        say(f"BROKEN {fault}")


MEANINGS: Final = {
    "right": "answers checked and right",
    "refused": "refused with 503 and Retry-After",
    "cut": "cut by a kill of their agent",
    "wrong": "wrong: a status that must not be",
    "unverified": "of bytes that nobody signed, of a bad release, or with other numbers",
    "lost": "lost by an agent that lived",
}


def main() -> int:
    """Run it from the command line.

    Returns:
        0 if every invariant held, else 1.
    """
    parser = argparse.ArgumentParser(description="A fleet in the field, with faults.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0, help="most time for the faults")
    options = parser.parse_args()
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        field = Field(
            Path(directory),
            seed=options.seed, count=options.devices, kills=options.kills,
            most_s=60 * options.minutes,
        )  # fmt: skip
        field.run()
        report(field, time.monotonic() - begun_s)
    return 1 if field.broken else 0


if __name__ == "__main__":
    sys.exit(main())
