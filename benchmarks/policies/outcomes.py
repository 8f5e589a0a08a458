"""Every policy, every variant alone and the best possible over the shipped traces.

Rules:
- All of it is simulated: the traces are synthetic and the board is a model (docs/traces.md).
- The worth of a policy is the sum over all requests that were answered in time, by a board below
  its severe heat, of the retention of the variant that answered, less one for each switch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.run import Replay, replay
from agent.replay.traces import Trace
from agent.select.decisions import Candidate
from benchmarks.policies.oracle import SWITCH_WORTH, Best, best_possible
from wire.codec import from_json
from wire.policy import PolicySpec

SETS: Final = {"classifier": EXAMPLE, "detector": Path(__file__).parent / "detectors.json"}
POLICY_NAMES: Final = ("rules", "adaptive")
MISDECLARED_SIGMA: Final = 0.3
"""Of the logarithm: two variants' latencies are off by about a third of each other."""


class Outcome(NamedTuple):
    """One trace with one set of variants."""

    trace: Trace
    variants: str
    best: Best | None
    """None where it was not looked for."""

    replays: dict[str, Replay]

    @property
    def requests(self) -> float:
        """All that came."""
        return self.replays["rules"].totals.requests

    def worth(self, name: str) -> float:
        """Return what a policy was worth, in answers of the reference."""
        totals = self.replays[name].totals
        return (totals.worth or 0.0) - SWITCH_WORTH * totals.switches

    def regret(self, name: str) -> float:
        """Return the share of what was possible that a policy lost."""
        return 1.0 - self.worth(name) / self.best.score if self.best else math.nan

    @property
    def best_alone(self) -> str:
        """The variant that would have been the best for the whole trace."""
        return max((n for n in self.replays if n not in POLICY_NAMES), key=self.worth)


def perturbed(trace: Trace, seed: int) -> Trace:
    """Return a trace that no constant of a policy was chosen on: warmer or colder, more or less."""
    chance = random.Random(f"{trace.header.name} {seed}")
    warmer_c, more = chance.uniform(-4.0, 4.0), chance.uniform(0.8, 1.2)
    resistance, lag = chance.uniform(0.9, 1.1), chance.uniform(0.7, 1.4)
    plant = trace.header.board.thermal
    thermal = replace(
        plant,
        resistance_c_per_w=plant.resistance_c_per_w * resistance,
        time_constant_s=plant.time_constant_s * lag,
    )
    board = replace(trace.header.board, thermal=thermal)
    ticks = tuple(
        replace(
            tick,
            inputs=replace(
                tick.inputs,
                ambient_c=tick.inputs.ambient_c + warmer_c,
                demand_per_s=tick.inputs.demand_per_s * more,
            ),
        )
        for tick in trace.ticks
    )
    return Trace(header=replace(trace.header, board=board), ticks=ticks)


def misdeclared(trace: Trace, seed: int) -> Trace:
    """Return a trace of a board on which no variant is as fast as was measured elsewhere."""
    chance = random.Random(f"{trace.header.name} {seed} declared")
    slowdowns = {name: math.exp(chance.gauss(0.0, MISDECLARED_SIGMA)) for name in variant_names()}
    board = replace(trace.header.board, slowdowns=slowdowns)
    return Trace(header=replace(trace.header, board=board), ticks=trace.ticks)


def variant_names() -> list[str]:
    """Return the names of all variants of all sets."""
    sets = [from_json(path.read_bytes(), VariantList) for path in SETS.values()]
    return [c.name for variants in sets for c in variants.variants]


def outcomes(traces: Sequence[Trace], *, oracle: bool = True) -> list[Outcome]:
    """Replay every policy and every variant alone over traces, with each set of variants."""
    found = []
    for label, path in SETS.items():
        variants = from_json(path.read_bytes(), VariantList).variants
        for trace in traces:
            replays = {kind: replayed(trace, variants, kind) for kind in POLICY_NAMES}
            replays |= {c.name: replayed(trace, variants, "rules", c.name) for c in variants}
            best = best_possible(trace, variants) if oracle else None
            found.append(Outcome(trace=trace, variants=label, best=best, replays=replays))
    return found


def replayed(
    trace: Trace, variants: Sequence[Candidate], kind: str, pinned: str | None = None
) -> Replay:
    """Replay one policy, or one variant alone."""
    spec = PolicySpec(kind="adaptive" if kind == "adaptive" else "rules")
    return replay(trace, variants, spec, pinned=pinned)


def table(found: Sequence[Outcome]) -> str:
    """Return all figures as a Markdown table."""
    columns = (
        "variants", "trace", "policy", "worth", "regret", "missed", "retention", "energy",
        "switches", "flaps", "severe",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|---|---|---" + "|---:" * 8 + "|"]
    for outcome in found:
        rows = []
        if outcome.best is not None:
            best = f"{outcome.best.score / outcome.requests:.4f}"
            rows.append(f"| oracle | {best} | | | | | {outcome.best.switches} | | |")
        for name, done in outcome.replays.items():
            totals = done.totals
            kept = totals.mean_retention
            rows.append(
                f"| {name} | {outcome.worth(name) / outcome.requests:.4f} "
                f"| {outcome.regret(name):.2%} | {totals.miss_ratio:.2%} "
                f"| {'' if kept is None else f'{kept:.4f}'} | {totals.energy_j:.0f} J "
                f"| {totals.switches} | {totals.flaps} | {totals.severe_s:g} s |"
            )
        label = f"| {outcome.variants} | {outcome.trace.header.name} "
        lines += [label + row for row in rows]
    return "\n".join(lines) + "\n"
