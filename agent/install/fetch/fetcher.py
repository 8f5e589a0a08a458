"""Fetches one blob after another from the sources, and goes on where a transfer stopped.

Rules:
- The sources are tried in the order of the settings; each brings what it can of what lacks.
- One that is too slow is left for another, and may have its turn again (`slowness`).
- A chunk is checked against its signed digest when it is complete; a blob without a list of chunk
  digests (the envelope, whose digest is signed) is checked as a whole. Only then it gets its name.
  The install hashes every file before it uses it; here it is not done a second time.
- The chunks that arrived stay in a partial file, also after a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import BlobMissingError, NeedsDeltaError, storage_faults
from agent.install.fetch.part import Blob, Part
from agent.install.fetch.slowness import Slow, Slowness
from agent.install.fetch.sources import (
    ChunkSource,
    Coming,
    Errand,
    SlowError,
    SourceError,
    SourceName,
)
from agent.package_files import refuse_links
from wire.clock import Clock
from wire.errors import FleetError
from wire.progress import HTTP, MQTT, MULTICAST, PEER

AGAIN: Final = frozenset({HTTP, MQTT, MULTICAST, PEER})
AGAIN_S: Final = 300.0
"""After this time one of these that could not go on is asked again, if what is left is too slow."""

OnFault = Callable[[str, FleetError], None]
"""Takes the name of a source, and why it could not go on."""


class SlowSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source that is too slow, and what the device does about it."""

    source: str
    slow: Slow
    other: str
    """What is asked now; empty if nothing better is left, and it goes on."""


OnSlow = Callable[[SlowSource], None]

Bind = Callable[[Errand], Errand]
"""Returns an errand that is counted, and ended where it costs too much."""


class Fetcher:
    """Fetches one blob at a time.

    Args:
        sources: What may bring chunks, in the order in which they are tried.
        clock: For flushing what has come.
        on_fault: Called when a source cannot go on and another is tried.
        on_slow: Called when a source is too slow.
        bind: Puts the bounds of the storage on an errand.
        coming: Where to say which blob comes.
    """

    def __init__(
        self,
        sources: Sequence[ChunkSource],
        clock: Clock,
        on_fault: OnFault = lambda _name, _fault: None,
        on_slow: OnSlow = lambda _slow: None,
        bind: Bind = lambda errand: errand,
        coming: Coming | None = None,
    ) -> None:
        self._sources = {source.name: source for source in sources}
        self._clock = clock
        self._on_fault = on_fault
        self._on_slow = on_slow
        self._slowness = Slowness()
        self._bind = bind
        self._coming = coming or Coming()

    def fetch(self, blob: Blob, part: Path, target: tuple[Path, str], errand: Errand) -> None:
        """Fetch a blob and move it to its place.

        Args:
            blob: The blob.
            part: Path of the partial file; correct chunks in it are kept.
            target: Directory and relative path of the finished file.
            errand: What the install wants.

        Raises:
            FetchError: No source could bring all of it, or the content is wrong and it is not known
                where.
            TransportError: There was no connection for some time.
            BlobMissingError: The controller has no such blob.
            IntegrityError: The content differs from what was signed.
            StorageError: The device's storage failed.
            DeferredError: It may cost no more now; what came is kept.
        """
        bound = self._bind(errand)
        refuse_links(*target)
        place = target[0] / target[1]
        with storage_faults(f"cannot store {target[1]}"):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Part(blob, part, self._clock, bound.wrote) as here:
                # What is here already costs nothing, so no budget ends the look at it.
                errand.found(here.recall(errand.check))
                try:
                    self._fill(here, bound)
                finally:
                    self._coming.sha256 = ""
                here.close_whole()
            part.replace(place)

    def end(self) -> None:
        """Let the sources go of what they have open, because the install needs nothing more now."""
        for source in self._sources.values():
            source.end()

    def _fill(self, part: Part, errand: Errand) -> None:
        fault: FleetError | None = None
        gone_s: dict[str, float] = {}
        while not part.complete and (name := self._choice(gone_s)) is not None:
            # Of what comes from other devices, that source knows more.
            self._coming.sha256 = part.blob.sha256 if name != PEER else ""
            telling = msgspec.structs.replace(errand, too_slow=partial(self._leaves, name, gone_s))
            try:
                self._sources[name].bring(part, telling)
            except SlowError as exc:  # it may have its turn again
                fault = fault or exc
                self._slowness.found(name, exc.slow.bytes_per_s, self._clock.monotonic_s())
                continue
            except NeedsDeltaError as exc:  # a later source may have one
                fault = exc
            except (SourceError, BlobMissingError) as exc:
                fault = fault if isinstance(fault, NeedsDeltaError) else exc
                self._on_fault(name, exc)
            gone_s[name] = self._clock.monotonic_s()
        if not part.complete:
            raise fault or SourceError(
                f"no source has all of {part.blob.sha256}",
                remedy='let the agent fetch by messages: put "mqtt" into delivery.sources',
            )

    def _choice(self, gone_s: Mapping[str, float]) -> SourceName | None:
        """Return the source to fetch from now.

        Args:
            gone_s: When each source could not go on.
        """
        now_s = self._clock.monotonic_s()
        names = (
            name
            for name in self._sources
            if name not in gone_s or (name in AGAIN and now_s - gone_s[name] >= AGAIN_S)
        )
        return self._slowness.choice(names, now_s)

    def _leaves(self, name: SourceName, gone_s: Mapping[str, float], slow: Slow) -> bool:
        """Tell of a source that is too slow, and return whether it is left for another."""
        other = slow.other
        if not (other or slow.stays):
            self._slowness.found(name, slow.bytes_per_s, self._clock.monotonic_s())
            choice = self._choice(gone_s)
            other = choice if choice is not None and choice != name else ""
        self._on_slow(SlowSource(source=name, slow=slow, other=other))
        return bool(other)
