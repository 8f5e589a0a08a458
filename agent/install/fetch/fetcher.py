"""Fetches one blob after another from the sources, and goes on where a transfer stopped.

Rules:
- The sources are tried in the order of the settings; each brings what it can of what lacks.
- A chunk is checked against its signed digest when it is complete; a blob without a list of chunk
  digests (the envelope, whose digest is signed) is checked as a whole. Only then it gets its name.
  The install hashes every file before it uses it; here it is not done a second time.
- The chunks that arrived stay in a partial file, also after a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agent.errors import BlobMissingError, NeedsDeltaError, storage_faults
from agent.install.fetch.part import Blob, Part
from agent.install.fetch.sources import ChunkSource, Coming, Errand, SourceError
from agent.package_files import refuse_links
from wire.clock import Clock
from wire.errors import FleetError
from wire.progress import PEER

OnFault = Callable[[str, FleetError], None]
"""Takes the name of a source, and why it could not go on."""

Bind = Callable[[Errand], Errand]
"""Returns an errand that is counted, and ended where it costs too much."""


class Fetcher:
    """Fetches one blob at a time.

    Args:
        sources: What may bring chunks, in the order in which they are tried.
        clock: For flushing what has come.
        on_fault: Called when a source cannot go on and another is tried.
        bind: Puts the bounds of the storage on an errand.
        coming: Where to say which blob comes.
    """

    def __init__(
        self,
        sources: Sequence[ChunkSource],
        clock: Clock,
        on_fault: OnFault = lambda _name, _fault: None,
        bind: Bind = lambda errand: errand,
        coming: Coming | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._on_fault = on_fault
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
        for source in self._sources:
            source.end()

    def _fill(self, part: Part, errand: Errand) -> None:
        fault: FleetError | None = None
        for source in self._sources:
            if part.complete:
                return
            # Of what comes from other devices, that source knows more.
            self._coming.sha256 = part.blob.sha256 if source.name != PEER else ""
            try:
                source.bring(part, errand)
            except NeedsDeltaError as exc:  # a later source may have one
                fault = exc
            except (SourceError, BlobMissingError) as exc:
                fault = fault if isinstance(fault, NeedsDeltaError) else exc
                self._on_fault(source.name, exc)
        if not part.complete:
            raise fault or SourceError(
                f"no source has all of {part.blob.sha256}",
                remedy='let the agent fetch by messages: put "mqtt" into delivery.sources',
            )
