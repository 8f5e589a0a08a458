"""Why adapt: policies on traces that are drawn at random, beside those of others.

`python benchmarks/adaptation.py [--quick] [--set development|validation|fresh] [--draws N]
[--seed MASTER] [--save FILE] [--load FILE] [--compare FILE] [--json] [--check]`

`benchmarks.policies.families` draws the traces, `benchmarks.policies.judged` judges. The default
set is `fresh`: its master seed is new at each run and printed; `--seed` repeats it. `--save` writes
the figures of each draw. `--compare` prints what changed since such a file, draw by draw; with
`--load` nothing runs. A value is a mean over draws of the same weight; its spread is the 95 %
confidence interval of the bootstrap.

Rules:
- A policy may be changed after a look at the development set, never after the validation set.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.harness import Row, main
from benchmarks.policies import intervals
from benchmarks.policies.families import FAMILIES, SEED_BITS, seeds
from benchmarks.policies.intervals import Interval
from benchmarks.policies.judged import POLICY_NAMES, Judged, fitted_share, judged

DRAWS: Final = 30
OURS: Final = "adaptive"
ENGINEER: Final = "engineer"
EWMA: Final = "ewma"
FEWEST: Final = 5
"""With fewer draws of a family the aims say nothing: chance decides."""

TOLD_EACH: Final = 20
"""After so many draws a line says how far the run is."""

TINY: Final = 1e-9
"""A loss below this is an error of rounding."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What `--save` writes."""

    set: str
    master: int | None
    draws: tuple[Judged, ...]


def run(options: argparse.Namespace, *, quick: bool) -> Record:
    """Judge all draws of a set, on all cores."""
    master = options.seed
    if options.set == "fresh" and master is None:
        master = int.from_bytes(os.urandom(8), "big") >> (64 - SEED_BITS)
    chosen = seeds(options.set, 1 if quick else options.draws, master=master)
    tasks = [(name, seed) for seed in chosen for name in FAMILIES]
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = []
        for one in pool.map(judged, *zip(*tasks, strict=True)):
            found.append(one)
            if len(found) % TOLD_EACH == 0:
                print(f"{len(found)} of {len(tasks)} draws", file=sys.stderr, flush=True)
    return Record(set=options.set, master=master, draws=tuple(found))


def rows_of(record: Record) -> list[Row]:
    """Return the figures of a set."""
    found = record.draws
    rows = [
        Row(
            name=f"{record.set} set, {len(found)} draws, {len(FAMILIES)} families",
            value=float(len(found)),
            unit="draws",
            spread="" if record.master is None else f"--set {record.set} --seed {record.master}",
        ),
        *(_aims(found) if aims_count(record) else map(_without_aim, _aims(found))),
    ]
    if record.set == "development":
        rows.append(Row(name="share of the engineer that fits", value=fitted_share(found), unit=""))
    rows += [
        _mean(f"{name}: mean regret", [d.regret(name) for d in found], "share")
        for name in POLICY_NAMES
    ]
    for spacing in ("near", "far"):
        some = [d for d in found if d.spacing == spacing]
        rows += [
            _against(f"variants {spacing}: mean regret", name, some)
            for name in (OURS, EWMA)
            if some
        ]
    for family in FAMILIES:
        some = [d for d in found if d.family == family]
        if some:
            rows += _of_family(family, some)
    return rows


def aims_count(record: Record) -> bool:
    """Tell whether there are enough draws of each family to hold the figures against the aims."""
    of_family = Counter(d.family for d in record.draws)
    return min(of_family.values(), default=0) >= FEWEST


def _without_aim(row: Row) -> Row:
    return replace(row, aim="", met=None)


def _aims(found: Sequence[Judged]) -> list[Row]:
    regrets = [d.regret(OURS) for d in found]
    ratio = intervals.of_ratio(regrets, [d.regret(ENGINEER) for d in found])
    misses = intervals.of_ratio(*([d.policies[n].miss_ratio for d in found] for n in (OURS, EWMA)))
    avoidable = intervals.of_ratio(*([d.avoidable_misses(n) for d in found] for n in (OURS, EWMA)))
    behind = {
        family: intervals.of_mean([d.behind_alone(OURS) for d in found if d.family == family])
        for family in FAMILIES
        if any(d.family == family for d in found)
    }
    hotter = [d.severe_per_hour(OURS) for d in found]
    hotter_than_search = [d.severe_per_hour(OURS, searched=True) for d in found]
    worst = max(behind, key=lambda family: behind[family].value)
    hourly: dict[str, Callable[[Judged], float]] = {
        "flaps an hour": lambda d: d.policies[OURS].flaps / d.hours,
        "switches an hour": lambda d: d.policies[OURS].switches / d.hours,
    }
    return [
        _mean("mean regret over the best known", regrets, "share", at_most=0.05),
        _row("loss over that of the engineer", ratio, "ratio", at_most=0.5),
        _row(f"behind the best variant alone, worst family: {worst}", behind[worst], "share",
             at_most=0.03),
        _mean("severe heat that a variant alone avoids", hotter, "s/h", at_most=1.0),
        _mean("the same, or the search", hotter_than_search, "s/h"),
        _mean("flaps", [hourly["flaps an hour"](d) for d in found], "1/h", at_most=2.0),
        _row("deadlines missed over those of ewma", misses, "ratio", at_most=1 / 3),
        _row("the same, beyond those that every variant misses", avoidable, "ratio",
             at_most=1 / 3),
        _mean("switches", [hourly["switches an hour"](d) for d in found], "1/h"),
        _mean(
            "room: the best known over the best variant alone",
            [d.loss(d.best_alone, below=d.best) for d in found],
            "share",
        ),
    ]  # fmt: skip


def _of_family(family: str, some: Sequence[Judged]) -> list[Row]:
    return [
        _against(f"{family}: mean regret", OURS, some),
        _mean(
            f"{family}: behind the best variant alone",
            [d.behind_alone(OURS) for d in some],
            "share",
        ),
        _mean(f"{family}: room", [d.loss(d.best_alone, below=d.best) for d in some], "share"),
    ]


def _against(name: str, policy: str, some: Sequence[Judged]) -> Row:
    """Return the regret of a policy beside that of the engineer."""
    found = intervals.of_mean([d.regret(policy) for d in some])
    theirs = intervals.of_mean([d.regret(ENGINEER) for d in some])
    return Row(
        name=f"{name} of {policy}, n={len(some)}",
        value=found.value,
        unit="share",
        peer=ENGINEER,
        peer_value=theirs.value,
        ratio=found.value / theirs.value if theirs.value > TINY else None,
        spread=str(found),
    )


def _mean(name: str, values: Sequence[float], unit: str, *, at_most: float | None = None) -> Row:
    return _row(name, intervals.of_mean(values), unit, at_most=at_most)


def _row(name: str, found: Interval, unit: str, *, at_most: float | None = None) -> Row:
    return Row(
        name=name,
        value=found.value,
        unit=unit,
        spread=str(found),
        aim="" if at_most is None else f"<= {at_most:.2g}",
        met=None if at_most is None else found.value <= at_most,
    )


def compared(now: Record, before: Record) -> list[Row]:
    """Return what changed between two runs, over the draws that both have.

    Args:
        now: The newer run.
        before: The older one.

    Raises:
        SystemExit: They have no draw in common.
    """
    old = {(d.family, d.seed): d for d in before.draws}
    pairs = [(d, old[d.family, d.seed]) for d in now.draws if (d.family, d.seed) in old]
    if not pairs:
        sys.exit("adaptation: the two runs have no draw in common; give both the same set and seed")
    figures: dict[str, tuple[str, Callable[[Judged, float], float]]] = {
        "regret": ("share", lambda d, best: d.loss(d.policies[OURS].worth, below=best)),
        "deadlines missed": ("share", lambda d, _: d.policies[OURS].miss_ratio),
        "severe heat that a variant alone avoids": ("s/h", lambda d, _: d.severe_per_hour(OURS)),
        "flaps": ("1/h", lambda d, _: d.policies[OURS].flaps / d.hours),
        "switches": ("1/h", lambda d, _: d.policies[OURS].switches / d.hours),
    }
    rows = []
    for name, (unit, figure) in figures.items():
        # Both have the same best known, so that a better policy does not raise its own measure.
        changes = [
            figure(a, max(a.best, b.best)) - figure(b, max(a.best, b.best)) for a, b in pairs
        ]
        rows.append(_mean(f"{OURS}: change of {name}, n={len(pairs)}", changes, unit))
    for family in FAMILIES:
        some = [(a, b) for a, b in pairs if a.family == family]
        regret = figures["regret"][1]
        changes = [regret(a, max(a.best, b.best)) - regret(b, max(a.best, b.best)) for a, b in some]
        if some:
            rows.append(_mean(f"{family}: change of regret, n={len(some)}", changes, "share"))
    return rows


def read(path: Path) -> Record:
    """Read what `--save` wrote.

    Args:
        path: The file.

    Raises:
        SystemExit: It cannot be read, or is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError) as exc:
        sys.exit(f"adaptation: cannot read {path}: {exc}; name a file that --save wrote")


def _why_not_written(path: Path) -> str:
    """Return why a file cannot be written; empty if it can. What is in it stays."""
    try:
        path.open("ab").close()
    except OSError as exc:
        return exc.strerror or str(exc)
    return ""


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
    for option in ("--save", "--load", "--compare"):
        parser.add_argument(option, type=Path)
    options, rest = parser.parse_known_args(argv)
    if {"-h", "--help"} & set(rest):
        parser.print_help()
    if options.draws < 1:
        parser.error("--draws is not 1 or more")
    if options.set != "fresh" and options.seed is not None:
        parser.error("--seed is for --set fresh: the seeds of the other sets are fixed")
    try:
        seeds(options.set, options.draws, master=0)
    except ValueError as exc:
        parser.error(str(exc))

    if options.save is not None and (fault := _why_not_written(options.save)):
        parser.error(f"--save: cannot write {options.save}: {fault}")

    def measure(quick: bool) -> list[Row]:
        record = run(options, quick=quick) if options.load is None else read(options.load)
        if options.compare is None and not aims_count(record):
            print(
                f"fewer than {FEWEST} draws of a family: no figure is held against an aim",
                file=sys.stderr,
            )
        if options.save is not None:
            options.save.write_bytes(msgspec.json.encode(record))
        return (
            rows_of(record) if options.compare is None else compared(record, read(options.compare))
        )

    return main("Adaptation, on traces drawn at random", measure, rest)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
