"""A device whose power goes at any moment of an install: what serves afterwards, and what is left.

`python benchmarks/powercut.py [--kills N] [--seed S] [--devices N] [--plant FAULT] [--quick]`
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import Row, main
from benchmarks.powercuts.plants import PLANTS
from benchmarks.powercuts.run import Options, PowerCuts
from benchmarks.powercuts.tally import Tally

KILLS: Final = 1000
QUICK_KILLS: Final = 20


def command(argv: Sequence[str]) -> int:
    """Run it from the command line.

    Args:
        argv: The arguments.

    Returns:
        The exit status: 1 after any violation.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rest-every", type=int, default=10)
    parser.add_argument("--within", type=float, default=60.0)
    parser.add_argument("--plant", choices=sorted(PLANTS))
    known, rest = parser.parse_known_args(argv)
    tally = Tally()

    def measure(quick: bool) -> list[Row]:
        nonlocal tally
        kills = known.kills or (QUICK_KILLS if quick else KILLS)
        options = Options(
            kills=kills, seed=known.seed, devices=known.devices, rest_every=known.rest_every,
            within_s=known.within, plant=PLANTS[known.plant] if known.plant else None,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as root:
            tally = PowerCuts(Path(root), options).run()
        return tally.rows(kills)

    status = main("Power cuts in the middle of installs", measure, list(rest))
    for violation in tally.violations:
        print(f"VIOLATION {violation}", file=sys.stderr)
    return 1 if tally.violations else status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process of ours is left
    sys.exit(command(sys.argv[1:]))
