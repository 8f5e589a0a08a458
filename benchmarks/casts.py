"""How much a rollout to many devices costs when each piece is sent once: casts beside messages.

Controller, broker and devices are those of `benchmarks/transfer.py`. All is on loopback, where the
way from the controller to the broker costs nothing: what casts save there is what they are for, and
`sent` says how much it is.
"""

from __future__ import annotations

import sys
from typing import Final

from benchmarks.harness import Row, against, main
from benchmarks.transfers.crowd import Crowd
from benchmarks.transfers.figures import MB, Run
from benchmarks.transfers.measuring import run_once
from benchmarks.transfers.rig import Rig, running_rig, working_folder

SIZE_BYTES: Final = 5_000_000
DEVICES: Final = 50
ROUNDS: Final = 3
LIMIT_S: Final = 60.0
SENT: Final = 0.2


def measure(quick: bool) -> list[Row]:
    """Measure fifty devices that want the same at once.

    Args:
        quick: One round.

    Returns:
        The rows.
    """
    # A device listens to one blob once: each round has one of its own.
    names = [f"round-{number}" for number in range(1 if quick else ROUNDS)]
    sizes_bytes = dict.fromkeys(names, SIZE_BYTES)
    runs: list[tuple[Run, Run]] = []
    with (
        working_folder() as folder,
        running_rig(folder / "casts", sizes_bytes, DEVICES) as rig,
        rig.crowd(rig.devices) as crowd,
    ):
        runs = [
            (_run(rig, crowd, name, multicast=True), _run(rig, crowd, name, multicast=False))
            for name in names
        ]
    title = f"{DEVICES} devices at once, {SIZE_BYTES / MB:g} MB each"
    figures = (
        ("sent", [(a.sent_bytes / MB, b.sent_bytes / MB) for a, b in runs], "MB", SENT),
        ("last", [(_last_s(a), _last_s(b)) for a, b in runs], "s", None),
        ("broker's peak", [(a.broker_peak_mb, b.broker_peak_mb) for a, b in runs], "MB", None),
        ("controller", [(a.controller_cpu_s, b.controller_cpu_s) for a, b in runs], "s", None),
        ("broker", [(a.broker_cpu_s, b.broker_cpu_s) for a, b in runs], "s", None),
    )
    return [
        against(
            f"{title}: {name}",
            [cast for cast, _ in pairs],
            [plain for _, plain in pairs],
            unit=unit,
            peer="messages to each",
            at_most=aim,
        )
        for name, pairs, unit, aim in figures
    ]


def _run(rig: Rig, crowd: Crowd, blob: str, *, multicast: bool) -> Run:
    run = run_once(rig, crowd, blob, count=DEVICES, limit_s=LIMIT_S, multicast=multicast)
    if run.faults:
        raise RuntimeError(f"a device has not got all: {run.faults}")
    return run


def _last_s(run: Run) -> float:
    return max(result.ended_s for result in run.results) - run.began_s


if __name__ == "__main__":
    sys.exit(main("One blob to many devices: sent once beside sent to each", measure))
