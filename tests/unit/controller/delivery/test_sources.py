"""Bounds on requests for sources, and on the answers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.delivery.sources import (
    BURST,
    EVERY_S,
    MAX_KNOWN,
    MAX_PAYLOAD_BYTES,
    Turns,
    check_request,
    fitted,
    sealed,
)
from tests.simulators.packages import DIRECTOR_KEY, TRUST
from wire.codec import to_json
from wire.delivery import (
    MAX_DELTA_CHUNKS,
    MAX_SOURCE_BLOBS,
    SOURCES_PAYLOAD_TYPE,
    BlobSources,
    DeltaSource,
    SourceRequest,
    Sources,
)
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES, decode_message

DIGESTS = tuple(f"{number:064x}" for number in range(100))


def request(blobs: tuple[str, ...] = DIGESTS[:1], nonce: str = "n") -> SourceRequest:
    return SourceRequest(device="cam-1", nonce=nonce, blobs=blobs)


def blob(
    number: int, *, chunks: int = 0, url_chars: int = 0, has_delta: bool = True, peers: int = 0
) -> BlobSources:
    delta = DeltaSource(
        base=DIGESTS[0],
        sha256=DIGESTS[number],
        size_bytes=10,
        chunk_bytes=131072,
        chunks=(DIGESTS[1],) * chunks,
    )
    urls = ("https://x/" + "u" * url_chars,)
    links = ("http://192.168.100.100:8471/" + "l" * 320,) * peers
    return BlobSources(
        sha256=DIGESTS[number],
        urls=urls,
        delta=delta if has_delta else None,
        peers=links or msgspec.UNSET,
    )


def answer(*blobs: BlobSources) -> Sources:
    return Sources(device="cam-1", nonce="n", blobs=blobs, valid_s=60.0)


def test_what_a_device_may_ask_for() -> None:
    check_request(request())
    check_request(request(DIGESTS[:MAX_SOURCE_BLOBS], nonce="n" * 64))


@pytest.mark.parametrize(
    "wrong",
    [
        request(()),
        request(DIGESTS[: MAX_SOURCE_BLOBS + 1]),
        request((DIGESTS[0], DIGESTS[0])),
        request(("A" * 64,)),
        request(("../../etc/passwd",)),
        request(nonce=""),
        request(nonce="n" * 65),
        request(nonce="\N{SNOWMAN}"),
        msgspec.structs.replace(request(), packages=DIGESTS[:17]),
        msgspec.structs.replace(request(), packages=("x",)),
    ],
    ids=range(10),
)
def test_what_it_may_not(wrong: SourceRequest) -> None:
    with pytest.raises(WireFormatError):
        check_request(wrong)


def test_what_fits_is_not_changed() -> None:
    whole = answer(*(blob(number, chunks=16) for number in range(MAX_SOURCE_BLOBS)))
    assert sum(len(each.delta.chunks) for each in whole.blobs if each.delta) == MAX_DELTA_CHUNKS
    assert fitted(whole, MAX_PAYLOAD_BYTES) == whole


def test_two_peers_for_each_of_as_many_blobs_as_may_be_asked_for_fit() -> None:
    whole = answer(*(blob(number, chunks=16, peers=2) for number in range(MAX_SOURCE_BLOBS)))
    assert fitted(whole, MAX_PAYLOAD_BYTES) == whole


def test_the_last_peers_go_before_anything_else() -> None:
    whole = answer(*(blob(number, chunks=2, peers=2) for number in range(4)))
    for kept in (3, 2, 1, 0):
        left = answer(
            *(blob(number, chunks=2, peers=2 if number < kept else 0) for number in range(4))
        )
        assert fitted(whole, len(to_json(left))) == left


def test_then_the_last_digests_of_chunks_go() -> None:
    whole = answer(blob(1, chunks=MAX_DELTA_CHUNKS), blob(2), blob(3, chunks=1))
    first, second, third = fitted(whole, MAX_PAYLOAD_BYTES).blobs
    assert first.delta is not None
    assert third.delta is not None
    assert len(first.delta.chunks) == MAX_DELTA_CHUNKS
    assert second == whole.blobs[1]
    assert third.delta.chunks == ()


def test_then_the_last_deltas_then_the_last_blobs() -> None:
    whole = answer(*(blob(number, chunks=2) for number in range(4)))
    bare = answer(*(blob(number) for number in range(4)))
    less = answer(*(blob(number) for number in range(3)), blob(3, has_delta=False))
    links = answer(*(blob(number, has_delta=False) for number in range(4)))
    for wanted in (bare, less, links, answer(*links.blobs[:2]), answer()):
        assert fitted(whole, len(to_json(wanted))) == wanted


@given(
    st.lists(
        st.builds(
            blob,
            st.integers(0, 99),
            chunks=st.integers(0, MAX_DELTA_CHUNKS),
            url_chars=st.integers(0, 8000),
            has_delta=st.booleans(),
            peers=st.integers(0, 8),
        ),
        max_size=MAX_SOURCE_BLOBS,
    )
)
def test_every_answer_fits_into_a_message(blobs: list[BlobSources]) -> None:
    envelope = sealed(answer(*blobs), DIRECTOR_KEY)
    assert len(envelope) <= MAX_MESSAGE_BYTES
    payload = TRUST.unseal(envelope, role="director", payload_type=SOURCES_PAYLOAD_TYPE)
    sent = decode_message(payload, Sources)
    left = [each.sha256 for each in sent.blobs]
    assert left == [each.sha256 for each in blobs][: len(left)], "the first are kept"
    assert sum(len(each.delta.chunks) for each in sent.blobs if each.delta) <= MAX_DELTA_CHUNKS


def test_a_device_may_ask_so_often_and_others_lose_nothing() -> None:
    turns = Turns()
    taken = [turns.take("greedy", 0.0) for _ in range(int(BURST) + 3)]
    assert taken == ["granted"] * int(BURST) + ["first-dropped", "dropped", "dropped"]
    assert turns.take("other", 0.0) == "granted"
    assert turns.take("greedy", EVERY_S) == "granted"
    assert turns.take("greedy", EVERY_S) == "dropped", "it was told of once"
    assert turns.take("greedy", 1000 * EVERY_S) == "granted"


def test_what_is_known_of_devices_is_bounded() -> None:
    turns = Turns()
    for number in range(2 * MAX_KNOWN):
        turns.take(f"cam-{number}", 0.0)
    assert len(turns) == MAX_KNOWN
