"""What a worker is asked and may answer: an answer that nobody waits for is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from agent.errors import StorageError
from agent.package_files import SignedFile
from agent.serve.errors import WorkerLoadError
from agent.serve.frames import (
    NO_MEMORY,
    Answer,
    Failed,
    Load,
    ModelIdentity,
    Replies,
    Reply,
    Signed,
)
from agent.serve.settings import WorkerLimits
from wire.errors import FleetError, IntegrityError, WireFormatError
from wire.package.index import asset_directory
from wire.package.variant import Variant

FAULTS: Final[dict[str, type[FleetError]]] = {
    kind.code: kind for kind in (IntegrityError, StorageError)
}
"""Faults of its files that a worker tells; any other is that the variant cannot be loaded."""

A = TypeVar("A")


def load_request(
    package: Path,
    variant: Variant,
    model: ModelIdentity,
    limits: WorkerLimits,
    files: Sequence[SignedFile],
) -> Load:
    """Return the request to load a variant.

    Args:
        package: The package's directory.
        variant: One of its variants.
        model: The identity that the worker puts into its answers.
        limits: What the worker may use.
        files: What was signed of all files that the variant needs.
    """
    golden = variant.info.golden
    return Load(
        stands_back=limits.stands_back,
        package_directory=str(package),
        files=tuple(
            Signed(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in files
        ),
        variant_directory=str(package / variant.directory),
        asset_directory=str(package / asset_directory(golden.asset)) if golden else None,
        info=variant.info,
        threads=limits.threads,
        memory_bytes=limits.memory_bytes,
        model=model,
    )


def expected(answer: Answer, kind: type[A]) -> A:
    """Return an answer of the kind that was asked for.

    Args:
        answer: What the worker sent.
        kind: What was asked for.

    Raises:
        IntegrityError: A file of the variant differs from what was signed.
        StorageError: A file of the variant cannot be read.
        WorkerLoadError: The worker could not do what it was asked.
        WireFormatError: It is of another kind.
    """
    if isinstance(answer, Failed):
        raise FAULTS.get(answer.code, WorkerLoadError)(answer.message, remedy=answer.remedy)
    if not isinstance(answer, kind):
        raise WireFormatError(f"it sent a {type(answer).__name__}")
    return answer


class Unanswered:
    """The requests that a worker has, turn by turn; it answers them in that order."""

    def __init__(self) -> None:
        self._turns: deque[set[int]] = deque()
        """The places of the requests that are not answered, for each turn."""

    def add(self, count: int) -> None:
        """Note a turn of so many requests."""
        self._turns.append(set(range(count)))

    def clear(self) -> None:
        """Forget all."""
        self._turns.clear()

    def take(self, answer: Answer) -> Sequence[Reply] | None:
        """Note what an answer is for.

        Args:
            answer: What the worker sent.

        Returns:
            Replies to requests of the first turn; None if the worker has no memory for that turn.

        Raises:
            WorkerLoadError: The worker could not do what it was asked.
            WireFormatError: No such request waits, or it is of another kind.
        """
        left = self._turns[0]
        if isinstance(answer, Failed) and answer.code == NO_MEMORY:
            left.clear()
            return None
        replies = expected(answer, Replies).replies
        for reply in replies:
            if reply.place not in left:
                raise WireFormatError(f"it answered request {reply.place}, which does not wait")
            left.remove(reply.place)
        return replies

    def ends_turn(self) -> bool:
        """Tell whether all of the first turn is answered; the next one is then the first."""
        if self._turns[0]:
            return False
        self._turns.popleft()
        return True
