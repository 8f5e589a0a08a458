"""What it costs a device to serve two neighbours: processor time and memory, beside nginx."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

from agent.peers.settings import PeerSettings
from benchmarks.harness import Row, against, alone, not_measured
from benchmarks.programs import program
from benchmarks.transfers.figures import MB, MS_PER_S
from benchmarks.transfers.peers import nginx
from benchmarks.transfers.rig import working_folder
from benchmarks.transfers.usage import cpu_s
from examples.digits.box import free_port
from tests.simulators.packages import DIRECTOR_KEY, package, variant
from tests.simulators.patience import PATIENCE_S
from wire.clock import SystemClock
from wire.codec import sha256_hex
from wire.package.index import CHUNK_BYTES
from wire.trust.peer_links import peer_path

NEIGHBOURS: Final = ("cam-2", "cam-3")
UNBOUNDED: Final = 2**40
HOUR_S: Final = 3600
ROOT: Final = Path(__file__).resolve().parents[2]


class _Used(NamedTuple):
    """What the process of a server has used so far."""

    cpu_s: float
    more_mb: float
    """Memory at its peak, above what the process had before it served."""


def neighbour_costs(size_bytes: int, *, rounds: int) -> list[Row]:
    """Measure a device that gives a blob to two others at the same time.

    Args:
        size_bytes: Of the blob.
        rounds: How many.

    Returns:
        The rows.
    """
    content = random.Random(1).randbytes(size_bytes)
    made = package("1", [(variant("best"), content)], chunk_bytes=CHUNK_BYTES)
    sha256, both_mb = sha256_hex(content), len(NEIGHBOURS) * size_bytes / MB
    bound = PeerSettings().bytes_per_s
    with working_folder() as folder, contextlib.ExitStack() as running:
        state = folder / "state"
        made.write_to(state / "packages" / made.digest)
        (file,) = (state / "packages" / made.digest).rglob("model.json")
        paced = running.enter_context(_Neighbour(state, sha256, bound))
        fast = running.enter_context(_Neighbour(state, sha256, UNBOUNDED))
        other = running.enter_context(_nginx(file, folder / "nginx"))
        bounded: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(rounds):
            bounded.append(MS_PER_S * paced.give() / both_mb)
            ours.append(MS_PER_S * fast.give() / both_mb)
            if other is not None:
                theirs.append(MS_PER_S * other() / both_mb)
        memory_mb = [each.used().more_mb for each in (paced, fast)]
    title = "serving two neighbours"
    fully = f"{title} as fast as they take it: processor time"
    return [
        alone(f"{title} at {bound / MB:.3g} MB/s: processor time", bounded, unit="ms/MB"),
        against(fully, ours, theirs, unit="ms/MB", peer="nginx")
        if theirs
        else not_measured(fully, "nginx is not installed", peer="nginx"),
        alone(f"{title}: memory beside the rest of the agent", memory_mb, unit="MB"),
    ]


class _Neighbour:
    """A device that serves, as a process."""

    def __init__(self, state: Path, sha256: str, bytes_per_s: int) -> None:
        self._port, self._sha256 = free_port(), sha256
        self._process = subprocess.Popen(
            [
                sys.executable, "-P", program("serving_neighbour"),
                str(state), str(self._port), str(bytes_per_s),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    def used(self) -> _Used:
        """Ask what it has used.

        Raises:
            RuntimeError: It has ended.
        """
        if self._process.stdin is None:
            raise RuntimeError("the neighbour has no input")
        print(file=self._process.stdin, flush=True)
        return _Used(*map(float, self._line().split()))

    def give(self) -> float:
        """Have two devices fetch the blob; return the processor time that it took."""
        until_s = int(SystemClock().now_s()) + HOUR_S
        paths = [
            peer_path(DIRECTOR_KEY, device=name, peer="cam-1", sha256=self._sha256, until_s=until_s)
            for name in NEIGHBOURS
        ]
        before = self.used()
        _fetch(self._port, paths)
        return self.used().cpu_s - before.cpu_s

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the neighbour ended")
        return line


@contextlib.contextmanager
def _nginx(file: Path, folder: Path) -> Iterator[Callable[[], float] | None]:
    """Run nginx; yield what has two clients fetch a file and returns its processor time."""
    with nginx(file.parent, folder) as server:
        if server is None:
            yield None
            return
        port = server.port
        family = psutil.Process().children(recursive=True)
        workers = [each for each in family if each.name() == "nginx"]

        def give() -> float:
            before_s = sum(map(cpu_s, workers))
            _fetch(port, [f"/{file.name}" for _ in NEIGHBOURS])
            return sum(map(cpu_s, workers)) - before_s

        yield give


def _fetch(port: int, paths: list[str]) -> None:
    """Fetch from a server over several connections at the same time, and keep nothing.

    Raises:
        RuntimeError: It refuses.
    """

    def one(path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the server answers with status {answer.status}")
        while answer.read(CHUNK_BYTES):
            pass
        connection.close()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(one, path) for path in paths]:
            done.result()
