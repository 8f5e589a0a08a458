"""Brings chunks by range requests from servers that have a blob, one server after another.

Rules:
- One request brings a run of chunks that lack; each chunk is kept as soon as it is whole.
- A server that does not answer rests, each time twice as long: others go on meanwhile.
- A server may say that it does not give a blob now, but has to say so quickly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult

import msgspec

from agent.install.fetch.connection import Bounds
from agent.install.fetch.part import Part
from agent.install.fetch.ranges import Ranges
from agent.install.fetch.slowness import Slow
from agent.install.fetch.sources import Errand, SourceError, SourceName
from wire.clock import Clock

REST_MIN_S: Final = 5.0
REST_MAX_S: Final = 600.0
PARDON_S: Final = 2.0
"""Who takes longer to say that it does not give a blob now rests: others pay for the time."""


class _Run(NamedTuple):
    """Chunks that follow one another and lack."""

    first: int
    after: int


class Places:
    """Servers that give ranges of blobs, over one connection that is kept open.

    Args:
        name: The source that asks them.
        clock: For rests.
        pardoned: What a server may say without a rest: it answers, but does not give this blob now.
        ca_files: Authorities of certificates, beside those of the system.
        bounds: What a server may cost.
        came: Called with the size of what has come, useful or not.
        key: Returns who answers at a place, which is who rests; by default the host and its port.
    """

    def __init__(
        self,
        name: SourceName,
        clock: Clock,
        *,
        pardoned: tuple[type[SourceError], ...],
        ca_files: tuple[Path, ...] = (),
        bounds: Bounds,
        came: Callable[[int], None] = lambda _size: None,
        key: Callable[[SplitResult], str] = lambda place: place.netloc,
    ) -> None:
        self._name = name
        self._clock = clock
        self._pardoned = pardoned
        self._key = key
        self._ranges = Ranges(ca_files, clock, came, bounds)
        self._resting: dict[str, tuple[float, float]] = {}
        """By key: until when it rests, and for how long."""

    def bring(self, place: SplitResult, part: Part, errand: Errand, *, following: str = "") -> None:
        """Bring what lacks from one place, unless who answers there rests.

        Args:
            place: Where the blob is.
            part: The partial file.
            errand: What the install wants.
            following: The place that is asked next, for one that is too slow; empty for none.

        Raises:
            SourceError: It does not give all of it.
            FleetError: The errand's check raised it.
        """
        began_s = self._clock.monotonic_s()
        if began_s < self._resting.get(self._key(place), (float("-inf"), 0.0))[0]:
            raise SourceError(f"{place.netloc} did not answer a short time ago")
        if following:
            errand = _with_other(errand, following)
        lacked = len(part.lacking)
        try:
            self._fetch_all(place, part, errand)
        except SourceError as exc:
            is_idle = len(part.lacking) == lacked
            is_late = is_idle and self._clock.monotonic_s() - began_s > PARDON_S
            if is_late or not isinstance(exc, self._pardoned):
                self.blame(place)
            raise
        self._resting.pop(self._key(place), None)

    def blame(self, place: SplitResult) -> None:
        """Let who answers at a place rest, twice as long as the last time."""
        _until_s, rest_s = self._resting.get(self._key(place), (0.0, 0.0))
        self.rest(place, min(max(2 * rest_s, REST_MIN_S), REST_MAX_S))

    def rest(self, place: SplitResult, rest_s: float) -> None:
        """Ask who answers at a place for nothing for some time."""
        self._resting[self._key(place)] = (self._clock.monotonic_s() + rest_s, rest_s)

    def end(self) -> None:
        """Close the connection."""
        self._ranges.close()

    def wake(self) -> None:
        """Let a read that waits end at once, because the agent stops."""
        self._ranges.wake()

    def _fetch_all(self, place: SplitResult, part: Part, errand: Errand) -> None:
        """Bring what lacks from one place.

        Raises:
            SourceError: It does not give all of it.
        """
        for run in _runs(part):
            self._fetch_run(place, run, part, errand)
        if not part.is_possible():
            raise SourceError(f"{place.netloc} sent wrong bytes")

    def _fetch_run(self, place: SplitResult, run: _Run, part: Part, errand: Errand) -> None:
        """Bring some chunks that follow one another.

        Raises:
            SourceError: The place does not give them.
        """
        blob = part.blob
        start = run.first * blob.chunk_bytes
        end = min(run.after * blob.chunk_bytes, blob.size_bytes)
        indices = range(run.first, run.after)
        sizes_bytes = [blob.length(index) for index in indices]
        blocks = self._ranges.read(
            place, start, end, blob.size_bytes, sizes_bytes, errand.check, errand.too_slow
        )
        # Left to the garbage collector, a reading that has not ended would end a later one.
        with contextlib.closing(blocks):
            for index, data in zip(indices, blocks, strict=True):
                size_bytes = part.keep_right(index, data)
                if size_bytes is None:  # the others of the package may be wrong, too
                    raise SourceError(f"{place.netloc} sent wrong bytes")
                if size_bytes:
                    errand.progress(size_bytes, self._name)


def _with_other(errand: Errand, other: str) -> Errand:
    """Return an errand that names another place, which is asked if one is too slow."""
    too_slow = errand.too_slow

    def named(slow: Slow) -> bool:
        return too_slow(msgspec.structs.replace(slow, other=other))

    return msgspec.structs.replace(errand, too_slow=named)


def _runs(part: Part) -> Iterator[_Run]:
    """Yield the runs of what lacks now."""
    lacking = part.lacking
    first = 0
    for place, index in enumerate(lacking):
        if place + 1 == len(lacking) or lacking[place + 1] != index + 1:
            yield _Run(lacking[first], index + 1)
            first = place + 1
