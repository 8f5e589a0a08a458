"""Remembers the last answer of a pure function that is asked the same again and again.

Of one decision all variants ask the same about the device, and what they ask with is large: neither
to be hashed nor to be compared.

Rules:
- The same means the same object: values here never change.
- One answer is kept, so nothing grows. Threads that ask at once at most compute it twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

About = TypeVar("About")
For = TypeVar("For")
Answer = TypeVar("Answer")


def last_asked(function: Callable[[About, For], Answer]) -> Callable[[About, For], Answer]:
    """Return a function that answers as another one does, and remembers its last answer.

    Args:
        function: Pure; of two values, the first of which is a value that never changes.
    """
    last: tuple[About, For, Answer] | None = None

    def answer(about: About, what: For) -> Answer:
        nonlocal last
        known = last
        if known is None or known[0] is not about or known[1] != what:
            known = last = (about, what, function(about, what))
        return known[2]

    return answer
