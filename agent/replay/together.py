"""Replays a decision over several models that share one simulated board.

Rules:
- Pure: trace, models and who chooses in, result out; time comes from the trace alone.
- The trace gives the board and its surroundings; each model brings its own requests.
- Who chooses sees the readings of the device and what each model's own workers showed, and decides
  while no variant is being loaded, as `agent.replay.run` has it for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from agent.replay.board import is_off
from agent.replay.readings import sense
from agent.replay.requests import Request
from agent.replay.server import Arrived
from agent.replay.several import Lane, Passed, pass_tick
from agent.replay.simulation import TickResult, World, start, switch
from agent.replay.traces import Trace
from agent.replay.variants import checked
from agent.select.decisions import Candidate, Decision, PolicyContext, PolicyState
from agent.select.estimates import Estimates, Observed, joined
from agent.select.joint import Asked
from agent.select.learnt import Learnt
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

Chooser: TypeAlias = Callable[[HealthSnapshot, Mapping[str, Asked]], Mapping[str, Decision]]


class Played(NamedTuple):
    """One model of a replay."""

    candidates: tuple[Candidate, ...]
    spec: PolicySpec
    """With a deadline."""

    came: Sequence[tuple[Request, ...]]
    """The requests of each tick."""


class ModelTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one model."""

    requests: float
    missed: float
    """Requests refused, or answered after the deadline."""

    worth: float
    """Sum of the worth of all ticks."""

    switches: int
    """Changes from one variant to another, or to none."""

    parked_s: float
    served_s: dict[str, float]
    """Time for which each variant was in service."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of several models in figures."""

    models: dict[str, ModelTotals]
    severe_s: float
    """Time at or above the temperature that counts as severe."""

    off_s: float
    short_s: float
    """Time in which a worker was ended for lack of memory."""


class _Run:
    """The state of a replay between two ticks."""

    def __init__(self, trace: Trace, models: Mapping[str, Played]) -> None:
        board = trace.header.board
        world = start(board, at_work=trace.header.at_work)
        self.state, self.load_ratio = world.state, 0.0
        self.lanes = {name: Lane(world) for name in models}
        self.contexts = {name: PolicyContext() for name in models}
        self.switched_s = dict.fromkeys(models, -math.inf)
        self.seen: dict[str, list[Observed | None]] = {name: [] for name in models}
        self.switches = dict.fromkeys(models, 0)
        self.by_name = {name: checked(m.candidates) for name, m in models.items()}

    def restarted(self) -> None:
        """Begin again, as an agent does after its board was off, with what is in its file."""
        for name, context in self.contexts.items():
            learnt = Learnt.of(context.state.estimates.battery).fit()
            state = PolicyState(estimates=Estimates(battery=learnt))
            self.contexts[name] = PolicyContext(state=state)
            self.switched_s[name] = -math.inf
            self.seen[name].clear()

    def decided(
        self,
        at_s: float,
        period_s: float,
        health: HealthSnapshot,
        models: Mapping[str, Played],
        choose: Chooser,
    ) -> None:
        """Let all models be decided, and begin to carry it out."""
        asked = {}
        for name, model in models.items():
            seen = self.seen[name]
            context = msgspec.structs.replace(
                self.contexts[name],
                since_switch_s=at_s - self.switched_s[name],
                period_s=period_s * len(seen),
                observed=joined(seen),
            )
            asked[name] = Asked(model.candidates, model.spec, context)
        for name, decision in choose(health, asked).items():
            self.seen[name].clear()
            world = switch(self.lanes[name].world, decision, self.by_name[name])
            self.lanes[name] = self.lanes[name]._replace(world=world)
            before = asked[name].context
            if decision.variant != before.variant:
                self.switched_s[name] = at_s
                self.switches[name] += before.variant is not None or before.state.parked
            self.contexts[name] = msgspec.structs.replace(
                before, variant=decision.variant, state=decision.state, levers=decision.levers
            )

    def sensed_world(self) -> World:
        """Return the device as its sensors see it: one load, and the memory of all."""
        held = sum(
            (lane.world.serving.peak_memory_bytes or 0)
            for lane in self.lanes.values()
            if lane.world.serving is not None
        )
        everything = Candidate(name="everything", peak_memory_bytes=held)
        return World(self.state, serving=everything, load_ratio=self.load_ratio)

    def passed(self, passed: Passed) -> None:
        """Go on after a tick."""
        self.state, self.load_ratio, self.lanes = passed.state, passed.load_ratio, passed.lanes
        for name, lane in passed.lanes.items():
            self.seen[name].append(lane.world.observed)


def replay_together(trace: Trace, models: Mapping[str, Played], choose: Chooser) -> Totals:
    """Run a decision over several models that share a board.

    Args:
        trace: The board and its surroundings over time.
        models: The models by name; their specs have deadlines.
        choose: Who decides.

    Returns:
        The totals.

    Raises:
        ReplayError: A variant has no latency or memory.
    """
    header, board, period_s = trace.header, trace.header.board, trace.header.period_s
    deadlines_ms = {name: m.spec.aim.deadline_ms or math.inf for name, m in models.items()}
    run = _Run(trace, models)
    ticks: list[dict[str, TickResult]] = []
    severe = off = short = 0
    served_s = {name: dict.fromkeys(found, 0.0) for name, found in run.by_name.items()}
    parked_s = dict.fromkeys(models, 0.0)
    for number, (tick, error) in enumerate(zip(trace.ticks, trace.sensor_errors(), strict=True)):
        readings = sense(
            board, run.sensed_world(), tick, error, begins_local_s=header.begins_local_s
        )
        is_severe = run.state.temperature_c >= board.limits.severe_c
        if is_off(board, run.state, tick.inputs):
            off += 1
            run.restarted()
        elif all(lane.world.coming is None for lane in run.lanes.values()):
            run.decided(tick.at_s, period_s, readings, models, choose)
        passed = pass_tick(
            board, run.state, run.lanes, tick,
            period_s=period_s,
            arrived={name: Arrived(tuple(m.came[number])) for name, m in models.items()},
            deadlines_ms=deadlines_ms,
        )  # fmt: skip
        run.passed(passed)
        ticks.append(passed.served)
        severe += is_severe
        short += bool(passed.short)
        for name, lane in passed.lanes.items():
            if lane.world.serving is not None:
                served_s[name][lane.world.serving.name] += period_s
            parked_s[name] += period_s * run.contexts[name].state.parked
    return Totals(
        models={
            name: ModelTotals(
                requests=math.fsum(t[name].requests for t in ticks),
                missed=math.fsum(t[name].missed for t in ticks),
                worth=math.fsum(t[name].worth or 0.0 for t in ticks),
                switches=run.switches[name],
                parked_s=parked_s[name],
                served_s=served_s[name],
            )
            for name in models
        },
        severe_s=severe * period_s,
        off_s=off * period_s,
        short_s=short * period_s,
    )
