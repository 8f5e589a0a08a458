"""Many devices that fetch the same at once."""

from __future__ import annotations

from typing import Final

from benchmarks.harness import Row, against
from benchmarks.transfers.crowd import Crowd
from benchmarks.transfers.figures import (
    MB,
    Run,
    costs,
    incomplete,
    last_of_many,
    rate_mb_per_s,
)
from benchmarks.transfers.measuring import run_once, run_raw
from benchmarks.transfers.peers import raw_server
from benchmarks.transfers.rig import Rig
from benchmarks.transfers.usage import busy_neighbours

ONE_ROUNDS: Final = 3
"""One device takes so short that one look at it is no measure."""

ONE_LIMIT_S: Final = 10.0
BUSY_PER_CORE: Final = 2


def many_devices(
    rig: Rig,
    crowd: Crowd,
    blob: str,
    counts: dict[int, int],
    *,
    limit_s: float,
    at_most: dict[int, float],
    memory_mb: float,
    useful: float,
) -> list[Row]:
    """Measure some numbers of devices.

    Args:
        rig: What runs.
        crowd: At least as many devices.
        blob: What each fetches.
        counts: Rounds by the number of devices.
        limit_s: When they give up.
        at_most: Aims for the time of the last, by the number of devices.
        memory_mb: Aim for the broker's peak.
        useful: Aim for the share of what was sent that was useful.

    Returns:
        The rows.
    """
    rows: list[Row] = []
    size_mb = rig.blobs[blob].size_bytes / MB
    with raw_server([rig.files[blob]]) as ports:
        for count, rounds in counts.items():
            name = f"{count} devices at once, {size_mb:g} MB each"
            one: list[Run] = []
            many: list[Run] = []
            raw: list[Run] = []
            for _ in range(rounds):
                one += [_one(rig, crowd, blob) for _ in range(ONE_ROUNDS)]
                many.append(run_once(rig, crowd, blob, count=count, limit_s=limit_s))
                raw.append(run_raw(crowd, blob, ports[0], count=count, limit_s=limit_s))
                if many[-1].faults:
                    break  # what it left behind would be part of the next round
            rows += [
                _together(name, many, raw),
                last_of_many(f"{name}: last", many, one, at_most=at_most.get(count)),
                *costs(name, many, useful=useful, memory_mb=memory_mb),
            ]
    return rows


def beside_busy_processes(
    rig: Rig, crowd: Crowd, blob: str, count: int, *, rounds: int, limit_s: float, at_most: float
) -> list[Row]:
    """Measure devices on a machine whose cores are taken.

    Args:
        rig: What runs.
        crowd: At least as many devices.
        blob: What each fetches.
        count: How many devices.
        rounds: How many.
        limit_s: When they give up.
        at_most: Aim for the time of the last.

    Returns:
        The rows.
    """
    name = f"{count} devices at once, {BUSY_PER_CORE} busy processes per core"
    one: list[Run] = []
    many: list[Run] = []
    bound_s = rounds * (ONE_ROUNDS * ONE_LIMIT_S + limit_s)
    with busy_neighbours(per_core=BUSY_PER_CORE, limit_s=bound_s):
        for _ in range(rounds):
            one += [_one(rig, crowd, blob) for _ in range(ONE_ROUNDS)]
            many.append(run_once(rig, crowd, blob, count=count, limit_s=limit_s))
    return [last_of_many(f"{name}: last", many, one, at_most=at_most)]


def _one(rig: Rig, crowd: Crowd, blob: str) -> Run:
    return run_once(rig, crowd, blob, limit_s=ONE_LIMIT_S, settle=False)


def _together(name: str, many: list[Run], raw: list[Run]) -> Row:
    peer = "raw TCP to as many"
    title = f"{name}: together"
    if (row := incomplete(title, [*many, *raw], unit="MB/s", peer=peer)) is not None:
        return row
    rates, raw_rates = map(rate_mb_per_s, many), map(rate_mb_per_s, raw)
    return against(title, list(rates), list(raw_rates), unit="MB/s", peer=peer)
