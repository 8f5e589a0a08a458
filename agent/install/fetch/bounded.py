"""Puts the bounds of the network in use around a source that fetches over it.

Rules:
- What a source of deltas asks for is no content: only files of the package as they are.
- The bounds are looked at before the first byte and at each check, so a transfer ends in its
  middle, and its chunks are kept.
"""

from __future__ import annotations

import msgspec

from agent.install.budget.budgets import Budgets
from agent.install.budget.decisions import Wanted
from agent.install.fetch.part import Part
from agent.install.fetch.sources import ChunkSource, Errand, SourceName


class BoundedSource:
    """A source that ends where it may cost no more.

    Args:
        source: The source.
        budgets: What it may cost.
    """

    def __init__(self, source: ChunkSource, budgets: Budgets) -> None:
        self._source = source
        self._budgets = budgets

    @property
    def name(self) -> SourceName:
        """As in the settings and in reports."""
        return self._source.name

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what it may; see `ChunkSource`.

        Raises:
            DeferredError: It may cost no more now.
        """
        wanted = Wanted(
            lacking_bytes=sum(part.blob.length(index) for index in part.lacking),
            is_content=part.blob.sha256 in errand.blobs,
        )

        def check() -> None:
            errand.check()
            self._budgets.check(wanted)

        check()
        self._source.bring(part, msgspec.structs.replace(errand, check=check))

    def end(self) -> None:
        """Let go of what is open, and keep what was really used."""
        self._source.end()
        self._budgets.settle()


def bound_writes(errand: Errand, budgets: Budgets) -> Errand:
    """Return an errand whose writes are counted and bounded."""

    def check() -> None:
        errand.check()
        budgets.check(Wanted(is_local=True))

    return msgspec.structs.replace(
        errand, check=check, wrote=budgets.wrote, only_deltas=budgets.only_deltas
    )
