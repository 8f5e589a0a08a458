"""Cuts the power of one device again and again, and looks at it between the cuts and after them.

Rules:
- A life of a device goes from a start to a power cut. The seed chooses how each goes; the moment
  that this is in an install is the machine's.
- Each life that is not cut while it starts must serve within a time. What serves first is a release
  that the link or the record named when the power went, or the one that was ordered since.
- No more than three lives pass without a new order: an effect that was begun five times without
  progress rightly gives up.
- The last life, and one after each few cuts, goes on until the order is done. Then the device must
  look like one whose power never went.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import httpx

from agent.install.records import ModelRecord
from agent.install.states import State
from benchmarks.powercuts.device import CALLS, Call, ClosedError, PowerDevice
from benchmarks.powercuts.fleet import PowerFleet
from benchmarks.powercuts.plants import Plant
from benchmarks.powercuts.stored import (
    calm_listing,
    faults_at_rest,
    faults_when_cut,
    listing,
    record_of,
    slot_of,
)
from benchmarks.powercuts.tally import Tally
from benchmarks.powercuts.watch import Watch
from wire.errors import FleetError

STEP_S: Final = 0.05
WITHIN_S: Final = 60.0
SETTLED_S: Final = 180.0
REST_S: Final = 10.0
"""For how long a device at rest may still tidy up."""

BEYOND: Final = 1.2
"""Moments go on after the measured end of an install by a fifth of its length."""

MOST_LIVES: Final = 3
MORE_FILES: Final = 8


class Way(StrEnum):
    """How the moment of a power cut is chosen."""

    INSTALL = "after an order, within the length of an install and a fifth"
    STATE = "after an order, soon after a state has come"
    AGAIN = "without a new order, within the length of an install"
    START = "within the time of a start"
    CALL = "at a system call"
    NO_CALL = "at a system call that did not come"


WEIGHTS: Final = {Way.INSTALL: 8, Way.STATE: 5, Way.AGAIN: 2, Way.START: 2, Way.CALL: 4}
CHOSEN: Final = [state for state in State if state not in {State.IDLE, State.REVERTING}]
"""The states of an install that does not fail."""

POLL_S: Final = 0.002
EARLY: Final = 0.25
"""So often the order comes while the device has no power."""


class Plan(NamedTuple):
    """How a life goes."""

    way: Way
    call: Call | None = None
    orders: bool = False
    """Whether there is a new order in it."""

    early: bool = False
    """Whether it comes while the device has no power."""


@dataclass(frozen=True, kw_only=True)
class Calm:
    """A device that never lost its power."""

    install_s: float
    """From an order to its end."""

    start_s: float
    """From a start to the first answer."""

    state: dict[str, int]
    """What lies in its state directory beside packages."""

    elsewhere: frozenset[str]
    """What lies in its home and among its temporary files."""

    processes: int
    files: int


class Cutter:
    """Cuts the power of one device.

    Args:
        fleet: Gives the orders.
        device: The device.
        watch: Asks it.
        rng: Chooses.
        strace: Whether powers may be cut at system calls.
    """

    def __init__(
        self,
        fleet: PowerFleet,
        device: PowerDevice,
        watch: Watch,
        rng: random.Random,
        *,
        strace: bool,
    ) -> None:
        self._fleet = fleet
        self._device = device
        self._watch = watch
        self._rng = rng
        self._tally = Tally()
        self._within_s = WITHIN_S
        self._ways = {w: n for w, n in WEIGHTS.items() if strace or w is not Way.CALL}
        self._ordered = ""
        self._may_serve: set[str] = set()
        self._lives = 0

    def tour(self) -> Calm:
        """Install each release once without a power cut, start once more, and measure that.

        Raises:
            TimeoutError: The device does not do as it should, even so.
        """
        device, lengths_s = self._device, []
        device.start()
        self._fleet.until_online(device.name)
        for release in sorted(self._fleet.releases.packages):
            begun_s = time.monotonic()
            self._order(release)
            self._settle()
            lengths_s.append(time.monotonic() - begun_s)
        if left := device.stop():
            raise TimeoutError(f"still there after a stop: {left}")
        device.start()
        answer = self._watch.answer_since(device.started_s, self._within_s)
        if answer is None:
            raise TimeoutError(f"{device.name} does not serve")
        self._settle()
        calm = Calm(
            install_s=sorted(lengths_s[1:])[len(lengths_s[1:]) // 2],  # the first one enrols
            start_s=answer.came_s - device.started_s,
            state=calm_listing(device.state_dir),
            elsewhere=self._elsewhere(),
            processes=len(device.processes()),
            files=device.open_files(),
        )
        if left := device.stop():
            raise TimeoutError(f"still there after a stop: {left}")
        return calm

    def run(
        self,
        calm: Calm,
        tally: Tally,
        *,
        kills: int,
        rest_every: int,
        within_s: float = WITHIN_S,
        plants: Sequence[Plant] = (),
    ) -> None:
        """Cut the power so many times, let the device come to rest, and stop it.

        Args:
            calm: A device that never lost its power.
            tally: Counts.
            kills: How often.
            rest_every: The device comes to rest after so many power cuts.
            within_s: In what time the device must serve after a start.
            plants: Faults to plant, one after each of the first power cuts.
        """
        self._tally, self._within_s = tally, within_s
        try:
            self._look_when_cut()
            self._cut(calm, kills, rest_every, list(plants))
        except (OSError, TimeoutError, FleetError, httpx.HTTPError, ClosedError) as exc:
            self._violate(f"{type(exc).__name__}: {exc}")
        finally:
            if left := self._device.stop():
                self._violate(f"still there after a stop: {left}")
            self._violate(*self._watch.taken_faults())

    def _cut(self, calm: Calm, kills: int, rest_every: int, plants: list[Plant]) -> None:
        for number in range(1, kills + 1):
            rests = number % rest_every == 0
            if not self._live(self._plan(rests=rests), calm, rests=rests):
                return
            if plants:
                plants.pop(0).act(self._device, self._fleet.releases)
                self._look_when_cut()
        self._device.start()
        if self._until_serves(Plan(Way.INSTALL)):
            self._rest(calm)

    def _plan(self, *, rests: bool) -> Plan:
        rng = self._rng
        if rests or self._lives >= MOST_LIVES:
            return Plan(Way.INSTALL, orders=True)
        way = rng.choices(list(self._ways), list(self._ways.values()))[0]
        if way is Way.CALL:
            names = rng.choice(list(CALLS))
            return Plan(way, Call(names, rng.randint(1, CALLS[names])), orders=True)
        return Plan(
            way,
            orders=way in {Way.INSTALL, Way.STATE},
            early=way is Way.INSTALL and rng.random() < EARLY,
        )

    def _live(self, plan: Plan, calm: Calm, *, rests: bool) -> bool:
        """Start, do as planned, and cut the power; return whether another life can follow."""
        device = self._device
        self._lives += 1
        if plan.early:
            self._order()
        device.start(plan.call)
        if plan.way is not Way.START:
            if self._until_serves(plan):
                if rests:
                    self._rest(calm)
                if plan.orders and not plan.early:
                    self._order()
            elif plan.call is None:
                return False
        self._await_moment(plan, calm)
        if plan.call is None and not device.is_running:
            self._violate("the agent ended by itself")
        way = Way.NO_CALL if plan.call is not None and device.is_running else plan.way
        device.cut()
        self._look_when_cut()
        self._tally.cut(str(way), self._state())
        return True

    def _await_moment(self, plan: Plan, calm: Calm) -> None:
        """Wait until the power is to go, or until it has gone at a system call."""
        rng, now_s = self._rng, time.monotonic()
        if plan.way is Way.STATE:
            chosen = str(rng.choice(CHOSEN))
            self._wait(now_s + BEYOND * calm.install_s, lambda: self._state() == chosen)
            self._wait(time.monotonic() + rng.random() ** 3)
        elif plan.way is Way.START:
            self._wait(self._device.started_s + rng.uniform(0, BEYOND * calm.start_s))
        elif plan.way is Way.CALL:
            self._wait(now_s + BEYOND * calm.install_s)
        else:
            beyond = BEYOND if plan.orders else 1.0
            self._wait(now_s + rng.uniform(0, beyond * calm.install_s))

    def _state(self) -> str:
        try:
            return str(record_of(self._device.state_dir).state)
        except FleetError:
            return "unknown"

    def _until_serves(self, plan: Plan) -> bool:
        """Wait until the device serves after its start, and judge what does."""
        device, started_s = self._device, self._device.started_s
        while (answer := self._watch.answer_since(started_s, STEP_S)) is None:
            if self._watch.has_faults:
                return False
            waited_s = time.monotonic() - started_s
            if not device.is_running:
                if plan.call is None:
                    self._violate(f"did not serve: it has ended {waited_s:.0f} s after its start")
                return False
            if waited_s > self._within_s:
                self._violate(f"did not serve {waited_s:.0f} s after its start")
                return False
        release = answer.release
        if release not in self._may_serve | {self._ordered}:
            self._violate(f"serves {release}, not one of {sorted(self._may_serve)}")
        which = "new" if release == self._ordered else "old"
        self._tally.serves(which, answer.came_s - started_s if plan.call is None else None)
        return True

    def _order(self, release: str = "") -> None:
        """Order a release, or any other than was ordered last or serves."""
        served = self._fleet.releases.of(str(slot_of(self._device.state_dir)))
        others = set(self._fleet.releases.packages) - {self._ordered, served and served[0]}
        self._ordered = release or self._rng.choice(sorted(others))
        self._lives = 0
        self._fleet.order(self._device.name, self._ordered)

    def _wait(self, until_s: float, seen: Callable[[], bool] | None = None) -> None:
        """Wait for a moment, for what is to be seen, or for the end of the agent."""
        step_s = STEP_S if seen is None else POLL_S
        while (rest_s := until_s - time.monotonic()) > 0 and self._device.is_running:
            if seen is not None and seen():
                return
            time.sleep(min(rest_s, step_s))

    def _look_when_cut(self) -> None:
        """Look at what lies on a device without power."""
        state_dir, releases = self._device.state_dir, self._fleet.releases
        self._violate(*faults_when_cut(state_dir, releases))
        try:
            record = record_of(state_dir)
        except FleetError:  # told above
            record = ModelRecord()
        target = record.target.digest if record.target is not None else None
        found = [releases.of(str(d)) for d in (slot_of(state_dir), target, record.previous)]
        self._may_serve = {each[0] for each in found if each is not None}

    def _settle(self) -> None:
        """Wait until what was ordered is done.

        Raises:
            TimeoutError: It was not.
        """
        wanted = self._fleet.releases.packages[self._ordered].digest
        end_s = time.monotonic() + SETTLED_S
        while True:
            record, slot = record_of(self._device.state_dir), slot_of(self._device.state_dir)
            target = record.target.digest if record.target is not None else None
            is_done = record.state is State.IDLE and record.failure is None
            state = self._fleet.state(self._device.name) if is_done else "running"
            if is_done and slot == target == wanted and state == "succeeded":
                return
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"{self._ordered} is not installed after {SETTLED_S:.0f} s: {record.state}, "
                    f"{record.failure}, the link names {slot}, the rollout is {state}"
                )
            time.sleep(STEP_S)

    def _rest(self, calm: Calm) -> None:
        """Let the device do one more order to its end, and compare it with a calm one."""
        self._order()
        self._settle()
        answer = self._watch.answer_since(time.monotonic(), self._within_s)
        if answer is None or answer.release != self._ordered:
            self._violate(f"answers with {answer} after {self._ordered} was installed")
        end_s = time.monotonic() + REST_S
        while (faults := self._unlike(calm)) and time.monotonic() < end_s:
            time.sleep(STEP_S)
        self._violate(*faults, *faults_when_cut(self._device.state_dir, self._fleet.releases))
        self._tally.rested()

    def _unlike(self, calm: Calm) -> list[str]:
        """Return how the device differs from a calm one."""
        device = self._device
        faults = faults_at_rest(device.state_dir, calm.state, self._fleet.releases)
        faults += [f"left over: {name}" for name in sorted(self._elsewhere() - calm.elsewhere)]
        processes, files = len(device.processes()), device.open_files()
        if processes != calm.processes:
            faults.append(f"{processes} processes, not {calm.processes}")
        if files > calm.files + MORE_FILES:
            faults.append(f"{files} open files, not {calm.files}")
        return faults

    def _elsewhere(self) -> frozenset[str]:
        places = (self._device.home, self._device.temporary)
        return frozenset(f"{place.name}/{name}" for place in places for name in listing(place))

    def _violate(self, *faults: str) -> None:
        if faults and not self._device.is_closed:
            self._tally.violate(*(f"{self._device.name}: {fault}" for fault in faults))
