"""What a simulated device asks for, answered from a signed package."""

from __future__ import annotations

import msgspec
import pytest

from agent.errors import FetchError
from agent.simulate.retrieval import Retrieval
from tests.simulators.packages import PROFILE, TRUST, SignedPackage, package, variant
from wire.codec import sha256_hex
from wire.delivery import Chunk

CHUNK = 1024
MADE = package("1", [(variant("best"), b"m" * 10 * CHUNK)], chunk_bytes=CHUNK)


def fetched(retrieval: Retrieval, made: SignedPackage) -> int:
    """Answer all that it asks for; return how many requests that took."""
    blobs = {sha256_hex(blob): blob for blob in made.blobs}
    requests = 0
    while (wanted := retrieval.wanted()) is not None:
        requests += 1
        for index in wanted.indices:
            begin = index * wanted.chunk_bytes
            data = blobs[wanted.sha256][begin : begin + wanted.chunk_bytes]
            is_whole = retrieval.take(Chunk(sha256=wanted.sha256, index=index, data=data))
            assert is_whole == (index == wanted.indices[-1])
    return requests


def test_it_fetches_index_manifest_and_the_files_of_one_variant() -> None:
    retrieval = Retrieval(MADE.ref, PROFILE, TRUST, limit_bytes=10**9)

    assert fetched(retrieval, MADE) == 3
    assert retrieval.is_done
    assert retrieval.variant == "best"
    assert retrieval.omitted_bytes == 0
    assert retrieval.came_bytes >= 10 * CHUNK


def test_beyond_the_limit_files_only_take_their_time() -> None:
    retrieval = Retrieval(MADE.ref, PROFILE, TRUST, limit_bytes=4 * CHUNK)
    fetched(retrieval, MADE)
    assert retrieval.omitted_bytes == 6 * CHUNK


def test_a_chunk_that_is_damaged_or_missing_ends_it() -> None:
    retrieval = Retrieval(MADE.ref, PROFILE, TRUST, limit_bytes=10**9)
    wanted = retrieval.wanted()
    assert wanted is not None
    with pytest.raises(FetchError):
        retrieval.take(Chunk(sha256=wanted.sha256, index=0, missing=True))
    with pytest.raises(FetchError):
        retrieval.take(Chunk(sha256=wanted.sha256, index=0, data=b"another index"))


def test_a_package_other_than_the_ordered_one_is_refused() -> None:
    ref = msgspec.structs.replace(MADE.ref, digest="0" * 64)
    with pytest.raises(FetchError):
        fetched(Retrieval(ref, PROFILE, TRUST, limit_bytes=10**9), MADE)
