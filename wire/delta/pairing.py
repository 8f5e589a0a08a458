"""Which tensor of the old file a tensor of the new one is made from. Pure.

A name says little: exporters number the tensors, so that a layer more renames all behind it, and
the branches of a model may use one name twice. So the content decides.

Rules:
- A tensor that the old file has anywhere, under whatever name, is paired with it.
- Else it is paired with the one of its name, shape and type, where both are near each other;
  several of one name in their order. Else with the one of its shape and type that it resembles
  most.
- What is left is paired by name, or in the order of the file: it may hold the same rows.
- Whether tensors resemble each other is read from a few hundred of their numbers. A wrong answer
  costs size and nothing else.
- Small tensors stay with the bytes between tensors: a segment of their own costs more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wire.delta.numpy_steps import numbers_of
from wire.delta.places import Likeness, Pair, Place

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

MIN_TENSOR_BYTES: Final = 64
SAMPLE: Final = 256
"""Numbers that are read of a tensor to tell whether it is near another."""

FAR_STEP: Final = 0.5
FAR_SHARE: Final = 0.05
"""Tensors are near if at most this share of their numbers moved by more than this many standard
deviations of the old ones. In the order of floats, whatever sets a weight to zero or changes its
sign moves it by one and more, and what multiplies it by 1.1 by less than a hundredth."""

MIN_CORRELATION: Final = 0.5
CORRELATION_SIGMAS: Final = 4.0
"""Two tensors that have nothing to do with each other correlate by 1 / sqrt(n) of n numbers."""

MAX_COMPARED: Final = 256
"""Old tensors of one shape and type that a new one is compared with."""

PRINT_BYTES: Final = 64
MAX_ALIKE: Final = 4
"""Old tensors with one print that are compared with a new one in full."""


def pairs(
    old: Any,  # noqa: ANN401 - bytes or a map
    new: Any,  # noqa: ANN401 - bytes or a map
    old_places: Iterable[Place],
    new_places: Iterable[Place],
) -> list[Pair]:
    """Pair the tensors of two files.

    Args:
        old: The old file.
        new: The new file.
        old_places: Its tensors, all within it.
        new_places: The tensors of the new file, all within it.

    Returns:
        The pairs, in the order of the new file; no two overlap there. An old tensor may be in
        several pairs if it is equal to several new ones.
    """
    return _Pairing(old, new, _apart(old_places), _apart(new_places)).pairs()


class _Pairing:
    """The tensors of both files, and the pairs that are found until now.

    Args:
        old: The old file.
        new: The new file.
        befores: The old tensors in order, without overlaps.
        afters: The new ones.
    """

    def __init__(
        self,
        old: Any,  # noqa: ANN401 - bytes or a map
        new: Any,  # noqa: ANN401 - bytes or a map
        befores: list[Place],
        afters: list[Place],
    ) -> None:
        self._old = memoryview(old)
        self._new = memoryview(new)
        self._befores = befores
        self._afters = afters
        self._found: dict[int, Pair] = {}
        self._taken: set[int] = set()

    def pairs(self) -> list[Pair]:
        """Return all pairs; each step looks at what the ones before left."""
        named = dict(self._named())
        self._pair_same(named)
        self._pair_near(named)
        self._pair_similar()
        self._pair_rest(named)
        return [self._found[p.offset] for p in self._afters if p.offset in self._found]

    def _named(self) -> Iterator[tuple[int, Place]]:
        """Yield where a new tensor is, and the old one of its name; several in their order."""
        waiting: dict[Hashable, deque[Place]] = defaultdict(deque)
        for place in self._befores:
            waiting[place.name, _kind(place)].append(place)
        for place in self._afters:
            if waiting[place.name, _kind(place)]:
                yield place.offset, waiting[place.name, _kind(place)].popleft()

    def _pair_same(self, named: dict[int, Place]) -> None:
        for after in self._afters:
            before = named.get(after.offset)
            if before is not None and self._are_same(before, after):
                self._pair(after, before, "same")
        open_lengths = {place.length for place in self._open()}
        alike: dict[bytes, list[Place]] = defaultdict(list)
        for before in self._befores:
            if before.length in open_lengths:
                alike[_print(self._old, before)].append(before)
        for after in self._open():
            for before in alike.get(_print(self._new, after), ())[:MAX_ALIKE]:
                if self._are_same(before, after):
                    self._pair(after, before, "same")
                    break

    def _pair_near(self, named: dict[int, Place]) -> None:
        for after in self._open():
            before = named.get(after.offset)
            if before is not None and before.offset not in self._taken:
                first, second = _sample(self._old, before), _sample(self._new, after)
                if _are_near(first, second):
                    self._pair(after, before, "near")

    def _pair_similar(self) -> None:
        afters: dict[Hashable, list[Place]] = defaultdict(list)
        for after in self._open():
            afters[_kind(after)].append(after)
        befores = self._free()
        for kind, these in afters.items():
            candidates = befores[kind][:MAX_COMPARED]
            samples = [_sample(self._old, place) for place in candidates]
            scaled = np.stack([_scaled(each) for each in samples]) if samples else None
            for after in these:
                if scaled is None:
                    break
                sample = _sample(self._new, after)
                correlations = scaled @ _scaled(sample)
                best = int(correlations.argmax())
                least = max(MIN_CORRELATION, CORRELATION_SIGMAS / sample.size**0.5)
                if correlations[best] >= least:
                    is_near = _are_near(samples[best], sample)
                    self._pair(after, candidates[best], "near" if is_near else "far")
                    scaled[best] = 0

    def _pair_rest(self, named: dict[int, Place]) -> None:
        for after in self._open():
            before = named.get(after.offset)
            if before is not None and before.offset not in self._taken:
                self._pair(after, before, "far")
        waiting = {kind: deque(places) for kind, places in self._free().items()}
        for after in self._open():
            if waiting.get(_kind(after)):
                self._pair(after, waiting[_kind(after)].popleft(), "far")

    def _pair(self, after: Place, before: Place, likeness: Likeness) -> None:
        self._found[after.offset] = Pair(after, before, likeness)
        self._taken.add(before.offset)

    def _open(self) -> list[Place]:
        return [place for place in self._afters if place.offset not in self._found]

    def _free(self) -> dict[Hashable, list[Place]]:
        free: dict[Hashable, list[Place]] = defaultdict(list)
        for place in self._befores:
            if place.offset not in self._taken:
                free[_kind(place)].append(place)
        return free

    def _are_same(self, before: Place, after: Place) -> bool:
        first, second = _content(self._old, before), _content(self._new, after)
        return bool(np.array_equal(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)))


def _apart(places: Iterable[Place]) -> list[Place]:
    """Return the tensors in the order of the file, without small ones and overlaps."""
    kept: list[Place] = []
    for place in sorted(places, key=lambda place: place.offset):
        is_free = not kept or kept[-1].offset + kept[-1].length <= place.offset
        if is_free and place.length >= MIN_TENSOR_BYTES:
            kept.append(place)
    return kept


def _kind(place: Place) -> Hashable:
    return place.element, place.shape, place.length


def _content(data: memoryview, place: Place) -> memoryview:
    return data[place.offset : place.offset + place.length]


def _print(data: memoryview, place: Place) -> bytes:
    """Return some bytes of a tensor and its length, which equal ones have in common."""
    content = _content(data, place)
    middle = place.length // 2
    parts = content[:PRINT_BYTES], content[middle : middle + PRINT_BYTES], content[-PRINT_BYTES:]
    return b"".join((place.length.to_bytes(8, "little"), *parts))


def _sample(data: memoryview, place: Place) -> Any:  # noqa: ANN401 - an array
    """Return some numbers of a tensor, from its whole length, as their order has them."""
    numbers = numbers_of(_content(data, place), place.element)
    if numbers.size > SAMPLE:
        numbers = numbers[np.arange(SAMPLE) * numbers.size // SAMPLE]
    plain = numbers.astype(np.float64)
    if place.element[0] == "f":
        return plain
    # Nobody says whether integers have a sign: they have the one with which they lie closer.
    signed = numbers.view(f"i{numbers.itemsize}").astype(np.float64)
    return signed if signed.std() < plain.std() else plain


def _are_near(before: Any, after: Any) -> bool:  # noqa: ANN401 - arrays
    far = np.count_nonzero(np.abs(after - before) > FAR_STEP * before.std())
    return bool(far <= FAR_SHARE * before.size)


def _scaled(sample: Any) -> Any:  # noqa: ANN401 - arrays
    """Return a sample of which the product with another one is their correlation."""
    centred = sample - sample.mean()
    length = float(np.sqrt(centred @ centred))
    return centred / length if length else centred
