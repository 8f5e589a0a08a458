"""A rollout in virtual time: the policy is the real one, its devices do what history shows. Pure.

Rules:
- Each tick does what a tick of the engine does: outcomes come in, gates are looked at if it is
  time to, the policy decides, and its decision is carried out at once. Ticks in which nothing can
  change are left out.
- A device is online in the hours of its history in which it was heard. An install takes as long as
  an earlier one, while the device is online; one that goes offline waits and goes on later.
- An install ends as one of the earlier ones, drawn by their shares. One that timed out is silent
  until its deadline.
- Stages are approved at once, and nobody lets a stage go on whose gates hold.
- A rollout that has not ended after `HORIZON_S` is unfinished.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from controller.domain.failure_limits import FailureKind, failures, share_of
from controller.domain.gates.control import held_out
from controller.domain.gates.look import Member, compared, window
from controller.domain.gates.looks import is_end, level, next_look_s
from controller.domain.gates.silence import Silence
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.rehearsal.chance import parts
from controller.domain.rehearsal.flights import DRAWS, Flight, drawn_flights
from controller.domain.rehearsal.history import HOUR_S, History, Played
from controller.domain.rehearsal.looks import look
from controller.domain.rehearsal.setting import End, Outcome, Planted, Setting, Told
from controller.domain.rehearsal.turning import Turns
from controller.domain.rollout_policy import Decision, decide, wanted
from controller.domain.rollout_view import GateView, InFlight, RolloutView
from controller.domain.stages import reach, resolved
from controller.domain.start_rate import Bucket
from controller.domain.starting_order import places
from controller.domain.states import RolloutState
from wire.durations import DAY_S, MINUTE_S

HORIZON_S: Final = 60 * DAY_S
TICK_S: Final = 1.0
DEVICES_BY_TICK: Final = 200
"""Of a larger fleet ticks are as much longer, so that it does not take as many more of them."""


def rehearse(
    setting: Setting, history: History, planted: Planted, *, seed: int, run: int
) -> Outcome:
    """Run a rollout once.

    Args:
        setting: The rollout.
        history: What its devices have shown.
        planted: What the release does to them.
        seed: What decides all chance.
        run: Which run of it: each begins with another day and draws anew.
    """
    return _Run(setting, history, planted, seed=seed, run=run).outcome()


class _Run:
    def __init__(
        self, setting: Setting, history: History, planted: Planted, *, seed: int, run: int
    ) -> None:
        self._setting, self._planted = setting, planted
        names = setting.devices
        drawn = parts(seed, run, 1 + DRAWS * len(names))
        day = int(drawn[0] * history.days)
        self._played = Played(history, setting.profiles, day)
        self._flights = drawn_flights(
            setting, history.installs, planted, drawn[1:].reshape(-1, DRAWS)
        )
        placed = places(setting.order, setting.id or f"{seed}/{run}", names)
        self._places = [placed[name] for name in names]
        profiles, percent = dict(zip(names, setting.profiles, strict=True)), setting.control_percent
        held, kinds = held_out(placed, profiles, percent, running=setting.running)
        self._stages = resolved(setting.stages, placed, kinds, held)
        self._number = {name: at for at, name in enumerate(names)}
        starting = self._ordered(range(len(names)))
        self._pending = [at for at in starting if names[at] not in held]
        """Those that start next, in order; without the control group, which follows them."""

        self._control = [at for at in starting if names[at] in held]
        self._tick_s = max(TICK_S, len(names) / DEVICES_BY_TICK)
        self._flying: dict[int, Flight] = {}
        self._waiting: dict[int, Flight] = {}
        self._succeeded: dict[int, float] = {}
        """With when each did."""

        self._started: dict[int, float] = {}
        self._ended_s: dict[int, float] = {}

        self._failed: list[FailureKind] = []
        self._now_s, self._online = 0.0, self._played.online(0)
        self._stage, self._stage_began_s = 1, 0.0
        self._turns = Turns(self._places, setting.profiles)
        self._complete_s: float | None = None
        self._views = [GateView(text=one.gate.text, stage=one.stage) for one in setting.gates]
        self._looks, self._ends_left = 0, len(self._stages)
        self._looked_before_s = 0.0
        """When gates were last looked at in an earlier stage."""

        self._looked_s: float | None = None
        self._silences: defaultdict[tuple[int, int], list[Silence]] = defaultdict(list)
        """By the stage and the gate."""

        self._reason, self._released = "", False
        self._told: list[Told | None] = [None] * len(setting.gates)
        self._stages_s: list[float] = []
        self._bucket = Bucket()

    def outcome(self) -> Outcome:
        """Run until the end."""
        while True:
            self._look()
            view = self._view()
            decision = decide(view)
            held = self._turns.note(
                view, [self._number[name] for name in decision.start],
                pending=self._pending, control=self._control,
                succeeded=self._succeeded, online=self._online,
            )  # fmt: skip
            self._carry_out(self._held_out(decision, held))
            if decision.action in {"halt", "finish"}:
                rule = _rule(view, decision) if decision.action == "halt" else ""
                return self._ended("halted" if rule else "succeeded", rule=rule)
            next_s = self._next_s(decision)
            self._reason = decision.reason
            if next_s > HORIZON_S:
                return self._ended("unfinished", waits=decision.reason)
            self._pass_to(next_s)

    def _view(self) -> RolloutView:
        """Return what the policy is told, as `controller.store.rollouts.view` does."""
        below = reach(self._stages, self._stage)
        known = RolloutView(
            now_s=self._now_s,
            state=RolloutState.RUNNING,
            limits=self._setting.limits,
            stages=self._stages,
            stage=self._stage,
            stage_complete_at_s=self._complete_s,
            approved_stage=len(self._stages),
            initial_devices=len(self._setting.devices),
            succeeded=len(self._succeeded),
            failed=len(self._failed),
            refused=self._failed.count(FailureKind.REFUSED),
            timed_out=self._failed.count(FailureKind.TIMED_OUT),
            in_flight=tuple(
                InFlight(
                    device=self._setting.devices[at],
                    online=bool(self._online[at]),
                    online_s=flight.online_s,
                    away_s=flight.away_s,
                )
                for at, flight in self._flying.items()
            ),
            waiting=len(self._waiting),
            returned=tuple(self._setting.devices[at] for at in self._waiting if self._online[at]),
            pending=len(self._pending),
            control=len(self._control),
            reachable=None
            if below is None
            else sum(self._places[at] < below for at in self._pending),
            may_start=None if self._setting.rate is None else int(self._filled().room),
            gates=() if self._released else tuple(self._views),
        )
        room = wanted(known)
        candidates: list[str] = []
        for at in self._pending if room else ():
            if below is not None and self._places[at] >= below:
                break
            if self._online[at]:
                candidates.append(self._setting.devices[at])
                if len(candidates) >= room:
                    break
        return replace(known, candidates=tuple(candidates))

    def _held_out(self, decision: Decision, instead: Mapping[int, int]) -> Decision:
        """Hold devices out in place of those that were away, and return what is left to do."""
        if not instead:
            return decision
        held = frozenset(instead.values())
        self._control = self._ordered([*(set(self._control) - instead.keys()), *held])
        self._pending = self._ordered([*(set(self._pending) - held), *instead])
        start = (name for name in decision.start if self._number[name] not in held)
        return replace(decision, start=tuple(start))

    def _carry_out(self, decision: Decision) -> None:
        """Do what was decided, as `controller.store.rollout_steps.save_decision` does."""
        for name in (*decision.silent, *decision.lost):
            del self._flying[self._number[name]]
            self._ended_s[self._number[name]] = self._now_s
            self._failed.append(FailureKind.TIMED_OUT)
        for name in decision.parted:
            self._waiting[self._number[name]] = self._flying.pop(self._number[name])
        for name in decision.returned:
            flight = self._waiting.pop(self._number[name])
            flight.away_s = 0.0
            self._flying[self._number[name]] = flight
        self._complete_s = decision.stage_complete_at_s
        if decision.action in {"advance", "finish"}:
            self._stages_s.append(self._now_s - self._stage_began_s)
        if decision.action == "advance":
            self._stage, self._stage_began_s = self._stage + 1, self._now_s
            self._looked_before_s = self._looked_s or 0.0
        if decision.releases_control:
            self._released = True
            self._pending, self._control = self._ordered([*self._pending, *self._control]), []
        if decision.start:
            now = self._filled()
            self._bucket = replace(now, room=now.room - len(decision.start))
            begun = {self._number[name] for name in decision.start}
            self._pending = [at for at in self._pending if at not in begun]
            self._flying |= {at: self._flights[at] for at in sorted(begun)}
            self._started |= dict.fromkeys(begun, self._now_s)

    def _pass_to(self, next_s: float) -> None:
        """Let time pass, and devices work."""
        passed_s = next_s - self._now_s
        for at, flight in list(self._flying.items()):
            if not self._online[at]:
                flight.away_s += passed_s
                continue
            flight.online_s += passed_s
            if flight.online_s >= flight.needs_s:
                del self._flying[at]
                self._ended_s[at] = next_s
                if flight.fate is None:
                    self._succeeded[at] = next_s
                else:
                    self._failed.append(flight.fate)
        if next_s // HOUR_S != self._now_s // HOUR_S:
            self._online = self._played.online(int(next_s // HOUR_S))
        self._now_s = next_s

    def _next_s(self, decision: Decision) -> float:
        """Return when something can change next."""
        soon_s = self._now_s + self._tick_s
        has_acted = decision.action == "advance" or decision.releases_control or decision.start
        if has_acted or decision.reason != self._reason:
            return soon_s  # the next tick sees what this one changed
        return max(soon_s, math.ceil(min(self._changes()) / self._tick_s) * self._tick_s)

    def _changes(self) -> Iterator[float]:
        now_s, limits = self._now_s, self._setting.limits
        yield (now_s // HOUR_S + 1.0) * HOUR_S
        for at, flight in self._flying.items():
            if self._online[at]:
                left_s = (
                    min(flight.needs_s, limits.device_deadline_s + self._tick_s) - flight.online_s
                )
                yield now_s + left_s
        soak_s = self._soak_s()
        if self._complete_s is not None:
            for after_s in (soak_s, limits.offline_limit_s):
                if self._complete_s + after_s > now_s:
                    yield self._complete_s + after_s
        if self._asked():
            due_s = next_look_s(self._looks_since_s(), self._looked_s, soak_s)
            if due_s > now_s:
                yield due_s
            elif self._complete_s is not None or self._has_compared():
                yield now_s + MINUTE_S  # it is due, and compares devices some minutes from now
        if self._setting.rate is not None and (room := self._filled().room) < 1.0:
            per_minute = self._setting.rate.at(len(self._succeeded))
            yield now_s + (1.0 - room) * MINUTE_S / per_minute

    def _filled(self) -> Bucket:
        """Return how many devices the rate lets start now."""
        if self._setting.rate is None:
            return self._bucket
        return self._bucket.filled(self._setting.rate.at(len(self._succeeded)), self._now_s)

    def _has_compared(self) -> bool:
        """Tell whether enough devices have the release that gates may compare."""
        return len(self._succeeded.keys() - self._turns.away) >= LEAST_DEVICES

    def _soak_s(self) -> float:
        own = self._stages[self._stage - 1].soak_s
        return self._setting.limits.soak_s if own is None else own

    def _ordered(self, devices: Iterable[int]) -> list[int]:
        """Return devices in the order of starting."""
        names = self._setting.devices
        return sorted(devices, key=lambda at: (self._places[at], names[at]))

    def _asked(self) -> list[int]:
        """Return the gates that are asked now."""
        if self._released:
            return []
        gates = self._setting.gates
        return [at for at, one in enumerate(gates) if one.stage in {None, self._stage}]

    def _looks_since_s(self) -> float:
        """Return from when the distances between looks count."""
        return self._looked_before_s if self._complete_s is None else self._complete_s

    def _look(self) -> None:
        """Look at the gates if it is time to, as `controller.services.gates` does."""
        asked = self._asked()
        soak_s = self._soak_s()
        now_s, complete_s = self._now_s, self._complete_s
        if not asked or now_s < next_look_s(self._looks_since_s(), self._looked_s, soak_s):
            return
        complete_for_s = None if complete_s is None else now_s - complete_s
        at = window(now_s, complete_for_s=complete_for_s, soak_s=soak_s)
        if at is None:
            return
        done = (each for each, done_s in self._succeeded.items() if done_s <= at.had_s)
        of = compared(
            self._members(done),
            self._members((*self._pending, *self._control)),
            at,
            away=self._members(self._turns.with_release, was_away=True),
            has_control=bool(self._control),
            began_s=0.0,
            under_way=self._under_way(at.had_s),
        )
        if of is None:
            return
        gates = self._setting.gates
        at_end = is_end(now_s, complete_s, self._looked_s, soak_s) and self._ends_left > 0
        self._looks, self._looked_s = self._looks + 1, now_s
        self._ends_left -= at_end
        at_level = level(self._looks, len(gates), ends=len(self._stages) if at_end else 0)
        self._views = [GateView(text=one.gate.text, stage=one.stage) for one in gates]
        for number in asked:
            told = look(
                self._played,
                self._setting.devices,
                number,
                gates[number],
                of,
                self._planted.harms,
                at_level=at_level,
                earlier=self._silences[self._stage, number],
            )
            self._silences[self._stage, number].append(told.silence)
            self._views[number] = replace(
                self._views[number], state=told.state, reason=told.reason, looked_at_s=now_s
            )
            if self._told[number] is None and told.state is not GateState.HOLD:
                self._told[number] = Told(at_s=now_s, devices=len(self._succeeded))

    def _under_way(self, at_s: float) -> int:
        """Return how many devices had begun at some time and had no outcome then."""
        return sum(
            began_s <= at_s < self._ended_s.get(at, math.inf)
            for at, began_s in self._started.items()
            if at not in self._turns.away
        )

    def _members(self, devices: Iterable[int], *, was_away: bool = False) -> list[Member]:
        """Return those of some devices that were there at their turns, or those that were not."""
        of = self._setting
        return [
            Member(of.devices[at], of.profiles[at], self._places[at])
            for at in sorted(devices)
            if (at in self._turns.away) is was_away and of.devices[at] not in of.running
        ]

    def _ended(self, end: End, *, rule: str = "", waits: str = "") -> Outcome:
        unstarted = len(self._pending) + len(self._control)
        return Outcome(
            end=end,
            at_s=self._now_s,
            rule=rule,
            waits=waits,
            stage=self._stage,
            stages_s=tuple(self._stages_s),
            told=tuple(self._told),
            started=len(self._setting.devices) - unstarted,
            with_release=len(self._succeeded),
            left=unstarted + len(self._waiting),
        )


def _rule(view: RolloutView, decision: Decision) -> str:
    """Return by which rule a rollout halts, in the order in which the policy asks them."""
    limits, gone = view.limits, len(decision.silent) + len(decision.lost)
    kinds, share = failures(view, gone=gone), share_of(view, gone=gone)
    if share.failed > limits.max_failures:
        return "max_failures"
    if limits.max_refused is not None and kinds.refused > limits.max_refused:
        return "max_refused"
    if limits.max_timed_out is not None and kinds.timed_out > limits.max_timed_out:
        return "max_timed_out"
    gates = [gate.text for gate in view.asked if gate.state is GateState.FAIL]
    return gates[0] if gates else "max_failure_percent"
