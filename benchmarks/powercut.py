"""A device whose power goes at any moment of an install: what serves afterwards, and what is left.

`python benchmarks/powercut.py [--kills N] [--seed S] [--devices N] [--plant FAULT] [--quick]`

Real agents on loopback get one order after the other from a real controller, through a real broker,
and fetch signed and listed packages, whose better variant is for ONNX Runtime. Each is killed with
all its processes, started, and killed again: at a random moment after an order, soon after a state
of the install has come, while it starts, or, where there is `strace`, at a random one of the system
calls that change files. The seed chooses how; the moment that this is in an install is the
machine's.

What must hold, and what is counted as a violation if it does not:
- A device that was started serves within a minute, and first what the link or the record named
  when its power went, or what was ordered since.
- Each answer, and there is one about ten times a second, is the golden answer of a signed release
  and variant.
- Whenever the power goes, all whole packages are byte by byte as signed, the link names one of
  them, the record can be read.
- A device that may finish an order finishes it, also for the controller. Then there lies on it,
  name by name, what lies on a device that never lost its power; so for its processes and files.

A kill is not all of a power cut: what was written stays written. What a storage may lose of that is
not tried here. `--plant` does a fault to show that it is seen:
- `unverified`, `incomplete`, `leak`: a model that nobody signed, a package without a file, a file
  that nobody needs, after the first cut. The device itself must never serve the first two.
- `answers`: the benchmark itself expects other answers. `dead`: the device cannot start again.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Row, main
from benchmarks.powercuts.plants import PLANTS
from benchmarks.powercuts.run import PowerCuts
from benchmarks.powercuts.tally import Tally

KILLS, QUICK_KILLS = 1000, 8
DEVICES, QUICK_DEVICES = 4, 2
"""How many devices lose their power side by side."""


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
    parser.add_argument("--devices", type=int)
    parser.add_argument("--rest-every", type=int, default=10)
    parser.add_argument("--within", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--plant", choices=sorted(PLANTS), action="append", default=[])
    known, rest = parser.parse_known_args(argv)
    tally = Tally()

    def measure(quick: bool) -> list[Row]:
        kills = known.kills or (QUICK_KILLS if quick else KILLS)
        devices = known.devices or (QUICK_DEVICES if quick else DEVICES)
        with (
            _folder(known.keep) as root,
            PowerCuts(root, seed=known.seed, devices=devices) as cuts,
        ):
            cuts.cut(
                tally, kills=kills, rest_every=known.rest_every, within_s=known.within,
                plants=[PLANTS[name] for name in known.plant],
            )  # fmt: skip
            if left := cuts.stop():
                tally.violate(f"still there after a stop: {left}")
        return tally.rows(kills)

    status = main("Power cuts in the middle of installs", measure, list(rest))
    return 1 if tally.violations else status


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as root:
        yield Path(root)


def _end(*_: object) -> None:
    """End in good order, so that no process of ours is left; a second signal must not stop that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(command(sys.argv[1:]))
