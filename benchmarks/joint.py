"""One decision for several models of a device, beside each model alone and constant combinations.

`python benchmarks/joint.py [--quick] [--set development|validation|fresh] [--draws N]
[--seed MASTER] [--json] [--check]`

`benchmarks.policies.shared_boards` draws the boards, `benchmarks.policies.shared_judged` judges. A
value is a mean over draws of the same weight; its spread is the 95 % confidence interval of the
bootstrap. The default set is `fresh`: its master seed is new at each run and printed. The time of a
decision is measured on one more board, on which heat and battery matter; it is processor time.

Rules:
- A policy may be changed after a look at the development set, never after the validation set.
- The engineer's constant is fitted on the development set.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from msgspec.structs import replace

from agent.select import adaptive
from agent.select.decisions import Candidate, Decision, PolicyContext
from agent.select.estimates import Observed
from agent.select.joint import Asked, choose_jointly
from benchmarks.harness import Row, main
from benchmarks.policies import intervals
from benchmarks.policies.families import SEED_BITS, seeds
from benchmarks.policies.intervals import Interval
from benchmarks.policies.shared_boards import FAMILIES
from benchmarks.policies.shared_judged import WAYS, SharedJudged, fitted_share, judge_shared
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec, Sharing

DRAWS: Final = 4
SIZES: Final = ((1, 6), (3, 6), (5, 6), (10, 8))
DECISIONS: Final = 150
AIM_MS: Final = 1.0
MIB: Final = 1024 * 1024
TENTH: Final = 100
"""Percentiles."""


def run(options: argparse.Namespace, *, quick: bool) -> tuple[int | None, list[SharedJudged]]:
    """Judge all draws of a set, on all cores."""
    master = options.seed
    if options.set == "fresh" and master is None:
        master = int.from_bytes(os.urandom(8), "big") >> (64 - SEED_BITS)
    chosen = seeds(options.set, 1 if quick else options.draws, master=master)
    names = list(FAMILIES)[: 2 if quick else None]
    tasks = [(name, seed) for seed in chosen for name in names]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        return master, list(pool.map(judge_shared, *zip(*tasks, strict=True)))


def rows_of(which: str, master: int | None, found: Sequence[SharedJudged]) -> list[Row]:
    """Return the figures of a set."""
    name = f"{which} set, {len(found)} draws"
    told = "" if master is None else f"--set {which} --seed {master}"
    rows = [Row(name=name, value=float(len(found)), unit="draws", spread=told)]
    if which == "development":
        rows.append(Row(name="the engineer's share that fits", value=fitted_share(found), unit=""))
    rows += [_mean(f"{way}: loss", [d.ways[way].loss for d in found], "share") for way in WAYS]
    rows += [_against("joint: loss over that of", way, found) for way in WAYS if way != "joint"]
    for figure, unit in (("severe_s", "s/h"), ("off_s", "s/h"), ("short_s", "s/h"),
                         ("switches", "1/h"), ("parked_s", "s/h")):  # fmt: skip
        for way in WAYS[:3]:
            values = [getattr(d.ways[way], figure) / d.hours for d in found]
            rows.append(_mean(f"{way}: {figure.removesuffix('_s')}", values, unit))
    for label, part in (("least", 0), ("greatest", -1)):
        for way in WAYS[:3]:
            missed = [d.ways[way].missed[_ranked(d)[part]] for d in found]
            rows.append(_mean(f"{way}: missed by the model of {label} weight", missed, "share"))
    for family in FAMILIES:
        some = [d for d in found if d.family == family]
        if some:
            rows.append(_against(f"{family}: loss over that of", "alone", some))
    return rows


def _ranked(drawn: SharedJudged) -> list[str]:
    return sorted(drawn.weights, key=lambda name: (drawn.weights[name], name))


def _mean(name: str, values: Sequence[float], unit: str) -> Row:
    found = intervals.of_mean(values)
    return Row(name=name, value=found.value, unit=unit, spread=str(found))


def _against(name: str, peer: str, found: Sequence[SharedJudged]) -> Row:
    ours, theirs = ([d.ways[way].loss for d in found] for way in ("joint", peer))
    ratio: Interval = intervals.of_ratio(ours, theirs)
    return Row(
        name=f"{name} {peer}, n={len(found)}",
        value=statistics.fmean(ours),
        unit="share",
        peer=peer,
        peer_value=statistics.fmean(theirs),
        ratio=ratio.value,
        spread=str(ratio),
    )


def decision_rows() -> list[Row]:
    """Time decisions, beside those of as many models that decide alone."""
    rows = []
    for models, variants in SIZES:
        ours, gap = _times_ms(models, variants, together=True)
        theirs, _ = _times_ms(models, variants, together=False)
        p50, p99 = _quantiles(ours)
        peer50, peer99 = _quantiles(theirs)
        for label, value, peer in (("median", p50, peer50), ("p99", p99, peer99)):
            rows.append(
                Row(
                    name=f"a decision for {models} x {variants}, {label}",
                    value=value,
                    unit="ms",
                    peer="each alone",
                    peer_value=peer,
                    ratio=value / peer,
                    spread=f"gap at most {gap:.2g} of the cost",
                    aim=f"<= {AIM_MS:g} ms" if (models, variants) == (5, 6) else "",
                    met=value <= AIM_MS if (models, variants) == (5, 6) else None,
                )
            )
    return rows


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=TENTH)
    return statistics.median(values), cuts[TENTH - 2]


def _times_ms(models: int, variants: int, *, together: bool) -> tuple[list[float], float]:
    """Return the processor time of decisions, and the greatest gap over the cost."""
    candidates = {f"m{n}": _variants(n, variants) for n in range(models)}
    specs = {
        name: PolicySpec(
            objective=Objective(deadline_ms=400.0),
            sharing=Sharing(weight=1.0 + number % 3, may_park=number % 2 == 0),
        )
        for number, name in enumerate(candidates)
    }
    contexts = {name: PolicyContext() for name in candidates}
    times, gap, headroom = [], 0.0, 0.6
    for second in range(DECISIONS):
        seen = {name: _seen(candidates[name], contexts[name].variant, models) for name in contexts}
        load = min(0.05 + sum(o.own_load for o in seen.values() if o), 1.0)
        held = sum(o.held_bytes for o in seen.values() if o)
        headroom += (0.35 + 0.75 * load - headroom) / 60.0
        charge = 0.6 - second * 1e-5
        health = HealthSnapshot(
            at_s=float(second), headroom=headroom, cpu_busy_ratio=load,
            memory_available_bytes=4096 * MIB - held, battery_ratio=charge,
            battery_discharging=True, power_mw=3000.0 + 5000.0 * load,
            battery_energy_j=charge * 120_000.0,
        )  # fmt: skip
        asked = {
            name: Asked(
                candidates[name],
                specs[name],
                replace(contexts[name], observed=seen[name], period_s=1.0 if second else 0.0),
            )
            for name in contexts
        }
        began = time.process_time()
        decided = _decided(health, asked, together=together)
        times.append((time.process_time() - began) * 1000.0)
        for name, decision in decided.items():
            searched = decision.inputs.get("together")
            if searched:
                gap = max(gap, searched["gap"] / max(searched["cost"], 1e-9))
            is_new = decision.variant != contexts[name].variant
            since_s = 0.0 if is_new else contexts[name].since_switch_s + 1.0
            contexts[name] = PolicyContext(
                variant=decision.variant, state=decision.state, since_switch_s=since_s,
                levers=decision.levers,
            )  # fmt: skip
    return times, gap


def _decided(
    health: HealthSnapshot, asked: Mapping[str, Asked], *, together: bool
) -> dict[str, Decision]:
    if together:
        return choose_jointly(health, asked)
    return {name: adaptive.choose(health, *each) for name, each in asked.items()}


def _variants(number: int, count: int) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            name=f"v{step}",
            latency_p50_ms=(60.0 + 7.0 * number) / 1.5**step,
            peak_memory_bytes=round(250 * MIB / 1.3**step),
            accuracy=1.0 - 0.013 * step,
            load_ms=300.0,
        )
        for step in range(count)
    )


def _seen(candidates: Sequence[Candidate], name: str | None, models: int) -> Observed | None:
    c = next((c for c in candidates if c.name == name), None)
    if c is None:
        return None
    count, latency_ms = 12.0 / models, c.latency_p50_ms or 0.0
    use = count * latency_ms / 1000.0
    return Observed(
        variant=c.name, alone_ms=latency_ms, held_bytes=c.peak_memory_bytes or 0, requests=count,
        answered=count, in_time=count, samples=count, compute_s=use, latency_ms=1.1 * latency_ms,
        own_load=use,
    )  # fmt: skip


def measure(options: argparse.Namespace, quick: bool) -> list[Row]:
    """Judge a set, and time decisions."""
    master, found = run(options, quick=quick)
    return [*rows_of(options.set, master, found), *decision_rows()]


def command(argv: Sequence[str]) -> int:
    """Run the benchmark from the command line.

    Args:
        argv: The arguments.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--set", choices=("development", "validation", "fresh"), default="fresh")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int)
    options, rest = parser.parse_known_args(argv)
    if {"-h", "--help"} & set(rest):
        parser.print_help()
    if options.draws < 1:
        parser.error("--draws is not 1 or more")
    if options.set != "fresh" and options.seed is not None:
        parser.error("--seed is for --set fresh: the seeds of the other sets are fixed")
    return main("Several models on one board", functools.partial(measure, options), rest)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
