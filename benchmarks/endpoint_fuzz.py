"""What malformed requests cost the endpoint: nothing but the answer.

Ten thousand cases of every kind that the tests know, each followed by a good request on a
connection of its own. The endpoint with its worker is a process apart, so that its memory is its
own. Slow and large kinds come from two clients at the side, fewer of them: they take as long as the
endpoint waits, and two large ones at once would rightly get a 503.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import psutil

from benchmarks.harness import Row, main
from benchmarks.programs import program
from tests.simulators.fuzz_client import Case, FuzzClient, UnexpectedError
from tests.simulators.fuzz_requests import KINDS, SLOW, good

MIB = 1024 * 1024
AIM_GROWTH_MIB = 8.0
MOST_S = 150.0
CASES, QUICK_CASES = 10_000, 2_000
WARM_CASES = 500
SLOW_CASES, QUICK_SLOW_CASES = 40, 6
"""Of each slow kind."""

LARGE = {"flood", "bomb"}


@dataclass
class Tally:
    """What came of the cases."""

    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    good_after: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, client: FuzzClient, kind: str, rng: random.Random) -> None:
        """Play a case and a good request after it."""
        statuses: tuple[int, ...] = ()
        fault, answered = "", 0
        after = Case(kind="after", sends=(good(rng, "Connection: close"),), answers=("ok",))
        try:
            statuses = client.play(KINDS[kind](rng))
            client.play(after)
            answered = 1
        except (UnexpectedError, OSError) as exc:
            fault = str(exc)[:300]
        with self._lock:
            self.kinds[kind] += 1
            self.statuses.update(str(status) for status in statuses or ("no answer due",))
            self.good_after += answered
            self.faults += [fault] if fault else []


class Server:
    """The endpoint and its worker."""

    def __init__(self, process: subprocess.Popen[str], pipes: tuple[IO[str], IO[str]]) -> None:
        self._asking, self._telling = pipes
        about = json.loads(self._telling.readline())
        self.supervisor = psutil.Process(process.pid)
        self.client = FuzzClient(about["port"], bytes.fromhex(about["right"]))
        self.worker = self.worker_now()

    def worker_now(self) -> psutil.Process:
        """Return the worker that answers now."""
        print("worker", file=self._asking, flush=True)
        return psutil.Process(int(self._telling.readline()))

    def sizes_mib(self) -> tuple[float, float]:
        """Return the resident sizes of supervisor and worker."""
        pair = (self.supervisor, self.worker)
        supervisor, worker = (process.memory_info().rss / MIB for process in pair)
        return supervisor, worker


@contextmanager
def running() -> Iterator[Server]:
    """Start the endpoint in a process of its own.

    Raises:
        RuntimeError: It cannot be talked to.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [sys.executable, "-P", program("fuzzed_endpoint"), directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # as the agent's service has it
        ) as process,
    ):  # fmt: skip
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes to the endpoint's process")
        yield Server(process, (process.stdin, process.stdout))
        process.stdin.close()


def measure(quick: bool) -> list[Row]:
    """Drive all kinds at an endpoint.

    Args:
        quick: Fewer cases.

    Returns:
        The rows.
    """
    cases, slow_cases = (QUICK_CASES, QUICK_SLOW_CASES) if quick else (CASES, SLOW_CASES)
    with running() as server:
        warm, tally = Tally(), Tally()
        _drive(server, warm, WARM_CASES, seed=1, most_s=MOST_S / 5)
        before = server.sizes_mib()
        side = [
            threading.Thread(target=_drive_slow, args=(server, tally, kinds, slow_cases))
            for kinds in (LARGE, set(SLOW) - LARGE)
        ]
        start_s = time.monotonic()
        for thread in side:
            thread.start()
        _drive(server, tally, cases, seed=5, most_s=MOST_S)
        took_s = time.monotonic() - start_s
        for thread in side:
            thread.join()
        restarts = int(server.worker_now().pid != server.worker.pid)
        # A new worker's size says nothing about the growth of the old one.
        nan = (math.nan, math.nan)
        after = server.sizes_mib() if not restarts else nan
    return _rows(tally, warm, took_s, restarts, tuple(zip(before, after, strict=True)), cases)


def _drive(server: Server, tally: Tally, cases: int, *, seed: int, most_s: float) -> None:
    quick = [kind for kind in KINDS if kind not in SLOW]
    rng = random.Random(seed)
    deadline_s = time.monotonic() + most_s
    for number, kind in enumerate(itertools.cycle(quick)):
        if number == cases or time.monotonic() > deadline_s:
            return
        tally.play(server.client, kind, rng)


def _drive_slow(server: Server, tally: Tally, kinds: AbstractSet[str], cases: int) -> None:
    rng = random.Random(2)
    for _ in range(cases):
        for kind in sorted(kinds):
            tally.play(server.client, kind, rng)


def _rows(
    tally: Tally,
    warm: Tally,
    took_s: float,
    restarts: int,
    sizes_mib: tuple[tuple[float, float], ...],
    cases: int,
) -> list[Row]:
    for fault in (*warm.faults, *tally.faults)[:10]:
        print(fault, file=sys.stderr)
    done = tally.kinds.total()
    wrong = len(tally.faults) + len(warm.faults)
    refused = sum(count for status, count in tally.statuses.items() if status.startswith("4"))
    rows = [
        _aimed("cases", done, "cases", f">= {cases}", met=done >= cases),
        _aimed("cases that ended otherwise than they must", wrong, "cases", "0", met=wrong == 0),
        _aimed("answers that blame the server (5xx)", _blamed(tally), "answers", "0",
               met=_blamed(tally) == 0),
        _aimed("good requests answered right after", tally.good_after, "requests", "each",
               met=tally.good_after == done),
        _aimed("worker restarts", restarts, "restarts", "0", met=restarts == 0),
        Row(name="answers that refuse (4xx)", value=refused, unit="answers"),
        Row(name="cases and good requests", value=2 * done / took_s, unit="1/s"),
    ]  # fmt: skip
    for name, (before, after) in zip(("supervisor", "worker"), sizes_mib, strict=True):
        rows.append(
            Row(
                name=f"growth of the {name}'s resident size",
                value=after - before,
                unit="MiB",
                spread=f"{before:.1f} to {after:.1f}",
                aim=f"<= {AIM_GROWTH_MIB:g} MiB",
                met=after - before <= AIM_GROWTH_MIB,
            )
        )
    statuses = sorted(tally.statuses.items())
    rows += [Row(name=f"status {name}", value=count, unit="answers") for name, count in statuses]
    kinds = sorted(tally.kinds.items())
    return rows + [Row(name=f"kind: {name}", value=count, unit="cases") for name, count in kinds]


def _blamed(tally: Tally) -> int:
    return sum(count for status, count in tally.statuses.items() if status.startswith("5"))


def _aimed(name: str, value: float, unit: str, aim: str, *, met: bool) -> Row:
    return Row(name=name, value=value, unit=unit, aim=aim, met=met)


if __name__ == "__main__":
    sys.exit(main("Malformed requests at the inference endpoint", measure))
