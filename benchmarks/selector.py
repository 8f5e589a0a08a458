"""What a policy is worth: `rules`, `adaptive`, each variant alone and the best possible.

`python benchmarks/selector.py [--quick] [--json] [--check]` prints means; `python -m
benchmarks.policies.page docs/selector` writes every figure and a plot of each trace.

Regret is the share of the worth (`benchmarks.policies.outcomes`) of the best possible way
(`benchmarks.policies.oracle`) that a policy loses. All of it is simulated; only the time of a
decision is measured. The constants of `adaptive` were chosen on the shipped traces; how it does
elsewhere shows on perturbed ones and on boards whose variants are not as fast as declared, where it
is compared with the best variant alone. `--quick` leaves out the trace whose oracle takes a minute.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Final

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.trace_file import load_trace, shipped_names
from agent.select.decisions import PolicyContext
from agent.select.policies import POLICIES
from benchmarks.harness import Row, alone, main
from benchmarks.policies.outcomes import (
    POLICY_NAMES,
    SETS,
    Outcome,
    misdeclared,
    outcomes,
    perturbed,
    replayed,
)
from wire.codec import from_json
from wire.messages import PolicySpec

SLOWEST: Final = "battery-day"
DECISIONS: Final = 2000
SEEDS: Final = (10, 11, 12, 13, 14)
"""Of traces that were not looked at when a constant was chosen; those below 10 were."""


def measure(quick: bool) -> list[Row]:
    """Replay everything, and time decisions."""
    names = [name for name in shipped_names() if not (quick and name == SLOWEST)]
    traces = [load_trace(name) for name in names]
    seeds = SEEDS[: 1 if quick else None]
    found = outcomes(traces)
    others = {
        what: outcomes([change(trace, seed) for trace in traces for seed in seeds], oracle=False)
        for what, change in (("perturbed", perturbed), ("misdeclared", misdeclared))
    }
    rows = []
    for label in SETS:
        rows += _rows(label, [o for o in found if o.variants == label])
        for what, elsewhere in others.items():
            rows += _elsewhere(label, what, [o for o in elsewhere if o.variants == label])
    return [*rows, _decision_time()]


def _rows(label: str, found: Sequence[Outcome]) -> list[Row]:
    rows = []
    for kind in POLICY_NAMES:
        regrets = [o.regret(kind) for o in found]
        aim = 0.05 if kind == "adaptive" else None
        rows.append(_mean(f"{label}: mean regret of {kind}", regrets, "share", at_most=aim))
    behind = [1.0 - o.worth("adaptive") / o.worth(o.best_alone) for o in found]
    name = f"{label}: adaptive behind the best variant alone, worst trace"
    rows.append(_mean(name, [max(behind)], "share", at_most=0.02))
    missed = {k: sum(o.replays[k].totals.missed for o in found) for k in POLICY_NAMES}
    ratio = missed["adaptive"] / missed["rules"]
    name = f"{label}: deadlines missed, adaptive over rules"
    rows.append(_mean(name, [ratio], "ratio", at_most=1 / 3))
    for kind in POLICY_NAMES:
        flaps = [float(o.replays[kind].totals.flaps) for o in found]
        rows.append(_mean(f"{label}: mean flaps of {kind}", flaps, ""))
    return rows


def _elsewhere(label: str, what: str, found: Sequence[Outcome]) -> list[Row]:
    behind = [1.0 - o.worth("adaptive") / max(o.worth(o.best_alone), 1.0) for o in found]
    rules = [1.0 - o.worth("rules") / max(o.worth(o.best_alone), 1.0) for o in found]
    name = f"{label}, {len(found)} {what} traces: behind the best variant alone,"
    return [_mean(f"{name} adaptive", behind, "share"), _mean(f"{name} rules", rules, "share")]


def _mean(name: str, values: Sequence[float], unit: str, *, at_most: float | None = None) -> Row:
    value = statistics.fmean(values)
    return Row(
        name=name,
        value=value,
        unit=unit,
        spread=f"{min(values):.3g} to {max(values):.3g}" if len(values) > 1 else "",
        aim="" if at_most is None else f"<= {at_most:.2g}",
        met=None if at_most is None else value <= at_most,
    )


def _decision_time() -> Row:
    """Time `adaptive` on the readings of a replay, each decision going on from the one before."""
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    spec = PolicySpec(kind="adaptive")
    steps = replayed(load_trace("noisy-corunner"), variants, "adaptive").steps
    policy, context, times_ms = POLICIES["adaptive"], PolicyContext(), []
    for i in range(DECISIONS):
        step = steps[i % len(steps)]
        began_s = time.perf_counter()
        decision = policy(step.readings, variants, spec, context)
        times_ms.append((time.perf_counter() - began_s) * 1000.0)
        context = PolicyContext(
            variant=decision.variant,
            state=decision.state,
            period_s=1.0,
            observed=step.observed,
        )
    return alone("a decision of adaptive", times_ms, unit="ms", at_most=1.0)


if __name__ == "__main__":
    sys.exit(main("Selector", measure))
