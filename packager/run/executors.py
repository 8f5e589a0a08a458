"""The places where the steps of a build run: processes of this machine, or a Dask cluster.

Rules:
- An executor is a `concurrent.futures` executor; it runs `packager.run.process.carry_out`.
- Measurements never go to an executor, because their figures must be those of the building machine.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final

from packager.errors import BuildError

LOCAL: Final = "local"
_DASK_SCHEME: Final = "dask://"
_DASK: Final = re.compile(rf"{_DASK_SCHEME}\S+:\d{{1,5}}")
_CONNECT_S: Final = 10.0


def default_jobs() -> int:
    """Return how many steps run at once: as many as this process may use processors."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def open_executor(name: str, jobs: int) -> Iterator[Executor]:
    """Open an executor.

    Args:
        name: `local`, or `dask://HOST:PORT` of a scheduler.
        jobs: How many steps run at once on this machine.

    Yields:
        The executor. Each thread of the local one waits for a process of its own.

    Raises:
        BuildError: There is no such executor, or it cannot be reached.
    """
    if name == LOCAL:
        pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="step")
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
        return
    if _DASK.fullmatch(name) is None:
        raise BuildError(
            f"there is no executor {name[:80]!r}", remedy=f"use {LOCAL} or {_DASK_SCHEME}HOST:PORT"
        )
    with _dask_client(name.removeprefix(_DASK_SCHEME)) as client:
        yield client.get_executor(pure=False)


@contextlib.contextmanager
def _dask_client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as exc:
        raise BuildError(
            "Dask is not installed here", remedy="pip install 'edgefleet[packager-dask]'"
        ) from exc
    try:
        client = Client(f"tcp://{address}", timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as exc:
        raise BuildError(
            f"no Dask scheduler answers at {address[:80]}: {exc}",
            remedy="start it with `dask scheduler`, or correct --executor",
        ) from exc
    try:
        yield client
    finally:
        client.close()
