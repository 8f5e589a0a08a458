"""Which pieces are here, asked for or missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.install.fetch.pieces import Asked, Pieces

BLOCK = 8 * 1024
CHUNK = 128 * 1024


def pieces(size_bytes: int, chunk_bytes: int = CHUNK) -> Pieces:
    made = Pieces(size_bytes, chunk_bytes, BLOCK)
    for chunk in range(-(-size_bytes // chunk_bytes)):
        made.add(chunk)
    return made


def sizes(asked: Asked, size_bytes: int) -> list[tuple[int, int]]:
    """Return offset and length of each piece."""
    return [
        (index * asked.piece_bytes, min(asked.piece_bytes, size_bytes - index * asked.piece_bytes))
        for index in asked.indices
    ]


def test_a_chunk_is_asked_for_in_even_parts() -> None:
    made = pieces(2 * CHUNK)
    assert made.ask(1, 100_000, 100_000, 64) == Asked(64 * 1024, (0,))
    assert made.ask(2, 100_000, 100_000, 64) == Asked(64 * 1024, (1,))
    assert made.ask(3, CHUNK, 10 * CHUNK, 64) == Asked(CHUNK, (1,))
    assert made.ask(4, CHUNK, 10 * CHUNK, 64) is None
    assert made.under_way_bytes == 2 * CHUNK


def test_what_begins_in_the_middle_of_a_chunk_goes_on_in_pieces_that_fit() -> None:
    made = pieces(CHUNK)
    assert made.ask(1, BLOCK, BLOCK, 64) == Asked(BLOCK, (0,))
    assert made.ask(2, CHUNK, CHUNK, 64) == Asked(BLOCK, (1,))
    assert made.ask(3, CHUNK, CHUNK, 64) == Asked(2 * BLOCK, (1,))
    assert made.ask(4, CHUNK, CHUNK, 64) == Asked(4 * BLOCK, (1,))
    assert made.ask(5, CHUNK, CHUNK, 64) == Asked(8 * BLOCK, (1,))
    assert made.ask(6, CHUNK, CHUNK, 64) is None


def test_a_chunk_that_cannot_be_halved_is_one_piece() -> None:
    made = pieces(200_001, 100_001)
    assert made.ask(1, BLOCK, BLOCK, 64) == Asked(100_001, (0,))
    assert made.arrived(0, 100_001) is True


def test_what_was_asked_for_before_an_answer_and_has_not_come_is_asked_for_again() -> None:
    made = pieces(2 * CHUNK)
    made.ask(1, CHUNK, CHUNK, 64)
    made.ask(2, CHUNK, CHUNK, 64)
    assert made.arrived(CHUNK, CHUNK) is True
    assert made.lose_before(2)
    assert not made.lose_before(2)
    assert made.ask(3, CHUNK, CHUNK, 64) == Asked(CHUNK, (0,))
    assert made.arrived(0, CHUNK) is True
    assert made.complete


def test_the_probe_is_one_smallest_piece_of_what_was_asked_for_first() -> None:
    made = pieces(2 * CHUNK)
    made.ask(1, CHUNK, CHUNK, 64)
    made.ask(2, CHUNK, CHUNK, 64)
    assert made.probe(3) == Asked(BLOCK, (0,))
    assert made.arrived(0, BLOCK) is False
    assert made.lose_before(3)
    assert made.ask(4, BLOCK, 2 * CHUNK, 64) == Asked(BLOCK, tuple(range(1, 32)))
    # What was taken for lost is taken if it comes after all.
    assert made.arrived(CHUNK, CHUNK) is True


def test_nothing_under_way_needs_no_probe() -> None:
    assert pieces(CHUNK).probe(1) is None


def test_a_wrong_chunk_is_asked_for_again() -> None:
    made = pieces(CHUNK)
    made.ask(1, CHUNK, CHUNK, 64)
    assert made.arrived(0, CHUNK) is True
    made.again(0)
    assert not made.complete
    assert made.ask(2, CHUNK, CHUNK, 64) == Asked(CHUNK, (0,))


@given(st.integers(-(2**40), 2**40), st.integers(-(2**20), 2**20))
def test_any_answer_leaves_it_consistent(offset_bytes: int, size_bytes: int) -> None:
    size = CHUNK + 5 * BLOCK + 17
    made = pieces(size)
    made.ask(1, BLOCK, 3 * BLOCK, 64)
    made.arrived(offset_bytes, size_bytes)
    number = 2
    while (asked := made.ask(number, CHUNK, CHUNK, 64)) is not None:
        for offset, length in sizes(asked, size):
            made.arrived(offset, length)
        number += 1
    made.lose_all()
    while (asked := made.ask(number, CHUNK, CHUNK, 64)) is not None:
        for offset, length in sizes(asked, size):
            made.arrived(offset, length)
        number += 1
    assert made.complete
    assert made.under_way_bytes == 0


@given(
    st.integers(1, 5 * CHUNK),
    st.sampled_from([1024, 8192, 10_000, CHUNK, 250_000]),
    st.lists(st.tuples(st.integers(0, 2**18), st.integers(0, 2**19), st.booleans()), max_size=60),
)
def test_every_byte_comes_once_if_nothing_is_lost(
    size_bytes: int, chunk_bytes: int, steps: list[tuple[int, int, bool]]
) -> None:
    """Whatever the size of pieces and windows, no byte is asked for twice but after a loss."""
    made = pieces(size_bytes, chunk_bytes)
    here = bytearray(size_bytes)
    number, asked_bytes, lost_bytes = 0, 0, 0
    for piece_bytes, room_bytes, is_lost in [*steps, *[(CHUNK, 2**19, False)] * 10_000]:
        number += 1
        asked = made.ask(number, piece_bytes, room_bytes, 64)
        if asked is None:
            break
        for offset, length in sizes(asked, size_bytes):
            assert length > 0
            asked_bytes += length
            if is_lost:
                lost_bytes += length
                continue
            assert made.arrived(offset, length) is not None
            here[offset : offset + length] = b"\1" * length
        if is_lost:
            made.lose_all()
    assert made.complete
    assert here == b"\1" * size_bytes
    assert asked_bytes - lost_bytes == size_bytes
