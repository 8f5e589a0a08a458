"""What a policy is worth: `rules`, `adaptive`, each variant alone and the best possible.

`python benchmarks/selector.py [--quick] [--json] [--check]` prints means; `python -m
benchmarks.policies.page docs/selector` writes every figure and a plot of each trace.

Regret is the share of the worth (`benchmarks.policies.outcomes`) of the best possible way
(`benchmarks.policies.oracle`) that a policy loses. All of it is simulated; only the time of a
decision is measured. The constants of `adaptive` were chosen on the shipped traces, so an aim that
is met there shows no more than that it can be met. How it does elsewhere shows on the same traces
perturbed, and on boards whose variants are not as fast as declared. There it is compared with the
variant that would have been best alone, which is known only afterwards, and with the one variant
that is best alone over the shipped traces, which a user could have pinned. `--quick` leaves out the
trace whose oracle takes a minute.
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
from wire.policy import PolicySpec

SLOWEST: Final = "battery-day"
DECISIONS: Final = 2000
SEEDS: Final = tuple(range(5000, 5010))
"""Of traces on which no constant was chosen. Choose others when one has been chosen after a look at
these; those below 15 and 1000 to 1029 have been seen."""

MUCH: Final = 0.02
"""Share behind the best variant alone that the aim allows."""


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
        known = [o for o in found if o.variants == label]
        rows += _rows(label, known)
        for what, elsewhere in others.items():
            there = [o for o in elsewhere if o.variants == label]
            rows += _elsewhere(label, what, there, pinned=_best_pinned(known))
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


def _best_pinned(found: Sequence[Outcome]) -> str:
    """Return the variant that is best alone over all traces, each of the same weight."""
    alone = [name for name in found[0].replays if name not in POLICY_NAMES]
    return max(
        alone,
        key=lambda name: statistics.fmean(o.worth(name) / o.worth(o.best_alone) for o in found),
    )


def _elsewhere(label: str, what: str, found: Sequence[Outcome], *, pinned: str) -> list[Row]:
    where = f"{label}, {len(found)} {what} traces"
    name = f"{where}: behind the best variant alone,"
    behind = {
        way: [1.0 - o.worth(way) / max(o.worth(o.best_alone), 1.0) for o in found]
        for way in ("adaptive", "rules", pinned)
    }
    much = [float(share > MUCH) for share in behind["adaptive"]]
    return [
        _mean(f"{name} adaptive", behind["adaptive"], "share"),
        _mean(f"{name} {pinned} pinned", behind[pinned], "share"),
        _mean(f"{name} rules", behind["rules"], "share"),
        alone(
            f"{where}: adaptive over {MUCH:g} behind", [statistics.fmean(much)], unit="of traces"
        ),
    ]


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
