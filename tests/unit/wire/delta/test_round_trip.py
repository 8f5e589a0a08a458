"""Whatever two files hold, the delta makes the new one to the last bit."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.deltas import ARITHMETIC, applied, of_files, whole
from wire.delta import layout
from wire.delta.encode import encode
from wire.delta.layout import Element, pays
from wire.delta.places import Place
from wire.errors import DeltaError

RANDOM = np.random.default_rng(7)
NOISE = RANDOM.bytes(300_000)
ELEMENTS: st.SearchStrategy[Element] = st.sampled_from(["f4", "i1", "n1"])
SHAPES = st.lists(st.integers(-1, 9), max_size=2).map(tuple)


def moved(content: bytes, kind: str, size: float) -> bytes:
    """Return weights that a fine-tuning has moved a little."""
    weights = np.frombuffer(content, kind)
    return (weights * (1 + size * RANDOM.standard_normal(weights.size))).astype(kind).tobytes()


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two files of which the second has something cut, put in, moved or written over."""
    old = draw(st.binary(max_size=600)) * draw(st.integers(1, 8))
    new = bytearray(old)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(new)))
        end = draw(st.integers(place, len(new)))
        new[place:end] = draw(st.one_of(st.binary(max_size=300), st.just(bytes(new[: end // 2]))))
    return old, bytes(new)


@st.composite
def any_places(draw: st.DrawFn, size: int) -> list[Place]:
    """Tensors anywhere, also outside of the file and over each other, as a forged file has them."""
    number = st.integers(-8, size + 200)
    return [
        Place(draw(st.sampled_from("ab")), draw(ELEMENTS), draw(SHAPES), *numbers)
        for numbers in draw(st.lists(st.tuples(number, number), max_size=5))
    ]


@given(edited(), st.data(), st.sampled_from(sorted(ARITHMETIC)))
@settings(max_examples=60)
def test_any_two_files_with_any_tensors_round_trip(
    files: tuple[bytes, bytes], data: st.DataObject, steps: str
) -> None:
    old, new = files
    delta = encode(
        old,
        new,
        old_places=data.draw(any_places(len(old))),
        new_places=data.draw(any_places(len(new))),
    )
    assert applied(old, delta, steps=ARITHMETIC[steps]) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b""),
        (b"", b"new"),
        (b"old", b""),
        (NOISE, NOISE),
        (NOISE[:1000], NOISE[-2000:]),
        (NOISE, NOISE[5:]),
        (NOISE[5:], NOISE),
    ],
    ids=["both empty", "old empty", "new empty", "same", "unrelated", "cut", "put in"],
)
def test_the_ends_round_trip(old: bytes, new: bytes) -> None:
    assert applied(old, encode(old, new)) == new


@pytest.mark.parametrize("steps", ARITHMETIC.values(), ids=ARITHMETIC)
@pytest.mark.parametrize(
    ("element", "kind", "most"),
    [("f4", "<f4", 0.5), ("f2", "<f2", 0.2), ("i1", "i1", 0.6), ("i4", "<i4", 0.6)],
)
def test_moved_weights_round_trip_and_become_small(
    element: Element, kind: str, most: float, steps: object
) -> None:
    weights = RANDOM.standard_normal(30_000) * (1 if kind[-2] == "f" else 20)
    old = weights.astype(kind).tobytes()
    new = moved(old, kind, 1e-4 if kind[-2] == "f" else 0.05)
    delta = encode(old, new, old_places=whole(old, element), new_places=whole(new, element))
    assert applied(old, delta, steps=steps) == new  # type: ignore[arg-type]
    assert len(delta) < most * len(new)


def test_equal_ranges_are_not_sent() -> None:
    new = bytearray(NOISE)
    new[150_000:150_010] = b"0123456789"
    delta = encode(NOISE, bytes(new))
    assert applied(NOISE, delta) == new
    assert len(delta) < 300


def test_a_moved_part_is_found_again() -> None:
    old = RANDOM.bytes(3_000_000)
    new = RANDOM.bytes(5000) + old[:1_000_000] + RANDOM.bytes(3) + old[1_200_000:]
    delta = encode(old, new)
    assert applied(old, delta) == new
    assert len(delta) < 12_000


def test_weights_in_a_file_of_unknown_format_are_found_by_their_steps() -> None:
    weights = RANDOM.standard_normal(300_000).astype("<f4").tobytes()
    old = NOISE[:4096] + weights + NOISE[:999]
    new = NOISE[:4090] + b"linker" + moved(weights, "<f4", 1e-5) + NOISE[:999]
    delta = encode(old, new)
    assert applied(old, delta) == new
    assert len(delta) < 0.4 * len(new)


def test_tensors_whose_names_were_lost_are_paired_in_order() -> None:
    parts = [RANDOM.standard_normal(4000).astype("<f4").tobytes() for _ in range(3)]
    after = [moved(part, "<f4", 1e-5) for part in parts]
    old, new = b"".join(parts), b"other header" * 40 + b"".join(after)

    def places(start: int, prefix: str) -> list[Place]:
        return [Place(f"{prefix}{n}", "f4", (4000,), start + 16_000 * n, 16_000) for n in range(3)]

    delta = encode(old, new, old_places=places(0, "a"), new_places=places(480, "b"))
    assert applied(old, delta) == new
    assert len(delta) < 0.4 * len(new)


def test_a_file_may_be_a_map(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(NOISE)
    with (tmp_path / "old").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=1) as view:
        delta = encode(view, NOISE[9:])
    assert applied(NOISE, delta) == NOISE[9:]


def test_more_parts_than_a_delta_may_have_are_joined() -> None:
    count = layout.MAX_SEGMENTS // 2 + 10
    old = NOISE[:64] * (2 * count)
    flipped = np.frombuffer(old, np.uint8).copy()
    flipped[::128] ^= 1
    new = flipped.tobytes()
    names = [Place(str(n), "f4", (16,), 128 * n, 64) for n in range(count)]
    delta = encode(old, new, old_places=names, new_places=names)
    assert applied(old, delta) == new


def test_another_old_file_is_refused_before_anything_is_written() -> None:
    delta = encode(NOISE, NOISE[1:])
    for other in (NOISE[:-1] + b"x", NOISE + b"x", b""):
        with pytest.raises(DeltaError, match="another version of the file; send the whole file"):
            applied(other, delta)


def test_a_delta_above_sixty_percent_does_not_pay() -> None:
    assert pays(60, 100)
    assert not pays(61, 100)
    assert not pays(len(encode(b"", b"")), 0)
    unrelated = of_files("x.bin", NOISE[:50_000], NOISE[50_000:100_000])
    assert not pays(len(unrelated), 50_000)
