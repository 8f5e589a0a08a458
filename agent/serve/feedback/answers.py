"""The answers that feedback can be about: few, small and not for long. Pure.

Rules:
- Of an answer is kept which release and variant gave it, how hot the device was, its classes and
  when it was; nothing of the request, and its id only as a hash.
- The newest `most` answers are kept, and none for longer than `keep_s`.
- An id that is used again names its newest answer.
- The truth of an answer is taken once. The same once more changes nothing, another one is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from wire.package.scores import Classes

KEY_BYTES: Final = 12
"""Of a hash: among 65,536 answers two have the same one with a probability below 1 in 10**19."""

Truth: TypeAlias = tuple[int, ...] | float
"""The right class of each sample, or a score."""


class Told(Enum):
    """What became of a truth."""

    COUNTED = "counted"
    AGAIN = "again"
    """It was known."""

    CONTRADICTION = "contradiction"
    """Another one was known."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What many answers have in common."""

    release: str
    variant: str
    thermal_band: str
    classes: Classes | None
    """Those that the variant tells apart."""


class Answer(msgspec.Struct, gc=False):
    """What is kept of an answer."""

    at_s: float
    """When it was given, by the clock that never goes back."""

    group: Group
    classes: tuple[int, ...]
    """The class of each sample; empty if there is none to compare."""

    truth: Truth | None = None


def key_of(model: str, name: str) -> bytes:
    """Return what stands for an answer.

    Args:
        model: The model's name.
        name: The id of the request.
    """
    text = f"{model}\0{name}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=KEY_BYTES).digest()


class Answers:
    """The answers that are known. Not for several threads.

    Args:
        most: How many are kept.
        keep_s: For how long.
    """

    def __init__(self, most: int, keep_s: float) -> None:
        self._most = most
        self._keep_s = keep_s
        self._known: dict[bytes, Answer] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, key: bytes, answer: Answer) -> None:
        """Keep an answer, which is newer than all others.

        Args:
            key: What stands for it.
            answer: The answer.
        """
        self._known.pop(key, None)
        self._known[key] = answer
        while len(self._known) > self._most or self._is_old(self._oldest, answer.at_s):
            del self._known[next(iter(self._known))]

    def find(self, key: bytes, now_s: float) -> Answer | None:
        """Return an answer; None if it is not known, or too old.

        Args:
            key: What stands for it.
            now_s: By the clock of `Answer.at_s`.
        """
        answer = self._known.get(key)
        return None if answer is None or self._is_old(answer, now_s) else answer

    def known(self, now_s: float) -> Iterator[tuple[bytes, Answer]]:
        """Yield all answers that are not too old, the oldest first.

        Args:
            now_s: By the clock of `Answer.at_s`.
        """
        for key, answer in self._known.items():
            if not self._is_old(answer, now_s):
                yield key, answer

    def restore(self, answers: Iterable[tuple[bytes, Answer]], now_s: float) -> None:
        """Begin with answers that were kept before.

        Args:
            answers: The oldest first.
            now_s: By the clock of `Answer.at_s`.
        """
        for key, answer in answers:
            if not self._is_old(answer, now_s):
                self.remember(key, answer)

    @property
    def _oldest(self) -> Answer:
        return next(iter(self._known.values()))

    def _is_old(self, answer: Answer, now_s: float) -> bool:
        return now_s - answer.at_s > self._keep_s


def tell(answer: Answer, truth: Truth) -> Told:
    """Take the truth of an answer, unless one is known.

    Args:
        answer: The answer; it keeps the truth.
        truth: The truth.

    Returns:
        What became of it.
    """
    if answer.truth is None:
        answer.truth = truth
        return Told.COUNTED
    return Told.AGAIN if answer.truth == truth else Told.CONTRADICTION
