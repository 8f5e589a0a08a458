"""How the processors of a device are shared among workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.serve.settings import workers_for

COUNTS = st.integers(1, 64)


@given(COUNTS, COUNTS, COUNTS)
def test_no_worker_waits_for_the_processor_of_another(
    asked: int, threads: int, processors: int
) -> None:
    found = workers_for(asked, threads=threads, processors=processors)
    assert 1 <= found.count <= min(asked, processors)
    assert 1 <= found.threads <= threads
    assert found.count * found.threads <= processors or found.count == found.threads == 1
    more = workers_for(asked + 1, threads=threads, processors=processors)
    assert more.count >= found.count
    assert more.threads <= found.threads


@given(COUNTS, COUNTS)
def test_one_worker_has_the_threads_of_the_profile(threads: int, processors: int) -> None:
    found = workers_for(1, threads=min(threads, processors), processors=processors)
    assert (found.count, found.threads) == (1, min(threads, processors))
