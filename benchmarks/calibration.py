"""Does what `adaptive` expects come true: of the times it said 95 % in time, how many held.

`python benchmarks/calibration.py [--days N] [--seed MASTER] [--quick] [--json] [--check]`

Each day is drawn at random (`benchmarks.policies.year`): a board, variants, requests, heat and what
else runs. For each decision the stated share in time is held against the requests that came until
the next decision. The peer is a running mean over the last hundred answers. The seed is new at each
run and printed; `--seed` repeats it.

Rules:
- A held share is of requests, not of decisions. Its spread is the 95 % confidence interval of a
  bootstrap that resamples days.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from benchmarks.harness import Row, main, not_measured
from benchmarks.policies.calibrated import (
    REMEMBERED,
    Bin,
    Period,
    brier,
    calibration_error,
    periods,
    reliability,
    within,
)
from benchmarks.policies.families import SEED_BITS
from benchmarks.policies.year import DAYS, draw_day

QUICK_DAYS: Final = 6
CLAIM: Final = (0.94, 0.96)
"""What counts as having said 95 %."""

AIM: Final = (0.93, 0.97)
RUNNING: Final = f"mean of {REMEMBERED} answers"
PERCENT: Final = 100


def measure(days: int, master: int) -> list[Row]:
    """Simulate days on all cores.

    Args:
        days: How many.
        master: Seed of the year.

    Returns:
        The figures.
    """
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = list(pool.map(functools.partial(simulated, master), range(days)))
    return rows_of(found, master)


def simulated(master: int, number: int) -> list[Period]:
    """Return what was said and what came on a day.

    Args:
        master: Seed of the year.
        number: Number of the day.
    """
    return periods(draw_day(master, number))


def rows_of(days: Sequence[Sequence[Period]], master: int) -> list[Row]:
    """Return the figures of some days.

    Args:
        days: The periods of each day.
        master: Seed of the year.
    """
    requests = sum(p.requests for day in days for p in day)
    rows = [
        Row(name="days", value=float(len(days)), unit="days", spread=f"--seed {master}"),
        Row(name="requests of which something was said", value=float(requests), unit="requests"),
    ]
    if not requests:
        return [*rows, not_measured("held of what was said", "no request came")]
    return [
        *rows,
        claim(days),
        *(_line(line) for line in reliability(days)),
        _beside("Brier score", *(brier(days, stated) for stated in (_ours, _running))),
        _beside(
            "expected calibration error",
            *(calibration_error(days, stated) for stated in (_ours, _running)),
        ),
    ]


def claim(days: Sequence[Sequence[Period]]) -> Row:
    """Return how much held of what was said to be 95 %.

    Args:
        days: The periods of each day.
    """
    low, high = CLAIM
    name = "held where 95 % was said"
    found = within(days, low, high, closed=True)
    if found is None:
        return not_measured(name, f"nothing between {low:.0%} and {high:.0%} was said")
    least, most = AIM
    return Row(
        name=f"{name} ({low:.0%} to {high:.0%}), n={found.requests}",
        value=found.held.value,
        unit="share",
        peer="stated",
        peer_value=found.stated,
        spread=str(found.held),
        aim=f"{least:g} to {most:g}",
        met=least <= found.held.value <= most,
    )


def _line(line: Bin) -> Row:
    low, high = (round(limit * PERCENT) for limit in (line.low, line.high))
    return Row(
        name=f"held where {low} to {high} % was said, n={line.requests}",
        value=line.held.value,
        unit="share",
        peer="stated",
        peer_value=line.stated,
        ratio=line.held.value / line.stated if line.stated else None,
        spread=str(line.held),
    )


def _beside(name: str, ours: float, theirs: float) -> Row:
    ratio = ours / theirs if theirs else None
    return Row(name=name, value=ours, unit="", peer=RUNNING, peer_value=theirs, ratio=ratio)


def _ours(period: Period) -> float:
    return period.stated


def _running(period: Period) -> float:
    return period.running


def command(argv: Sequence[str]) -> int:
    """Run the benchmark from the command line.

    Args:
        argv: The arguments.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--seed", type=int)
    options, rest = parser.parse_known_args(argv)
    if {"-h", "--help"} & set(rest):
        parser.print_help()
    if options.days < 1:
        parser.error("--days is not 1 or more")
    master = options.seed
    if master is None:
        master = int.from_bytes(os.urandom(8), "big") >> (64 - SEED_BITS)

    def rows(quick: bool) -> list[Row]:
        return measure(min(options.days, QUICK_DAYS) if quick else options.days, master)

    return main("Calibration, over a year of simulated days", rows, list(rest))


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
