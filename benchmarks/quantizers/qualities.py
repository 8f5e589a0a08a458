"""How well a model answers a sample, as a part of a whole: what counts, and how much can count.

The quality over samples is the sum of the first numbers over that of the second ones. So it is the
share of right answers, of right characters, or of found pixels, and every tool is judged alike.

Rules:
- Only NumPy is imported, and nothing of ours: another tool's environment imports this, too.
- These are second implementations on purpose. What our build computes does not judge our build.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Part = tuple[float, float]
Quality = Callable[[Array, Array], Part]

FOUND: Final = 0.3
"""From this on a detector's pixel belongs to a text, as its authors have it (DBPostProcess)."""


def right_class(answer: Array, label: Array) -> Part:
    """Tell whether the greatest score is that of the label.

    Args:
        answer: Scores, `[1, classes]`.
        label: The number of the class.

    Returns:
        1 or 0, of 1.
    """
    return float(np.argmax(answer) == int(label)), 1.0


def right_characters(answer: Array, label: Array) -> Part:
    """Count the characters that are right: the text's less the edits that mend what was read.

    Args:
        answer: Scores, `[1, steps, tokens]`; token 0 is CTC's blank, and the best path is read.
        label: The tokens of the text, padded with -1.

    Returns:
        The number of right characters, which more edits than characters make negative, and of all.
    """
    read = tokens_read(answer)
    text = [int(token) for token in label if token >= 0]
    return float(len(text) - _edits(read, text)), float(len(text))


def tokens_read(answer: Array) -> list[int]:
    """Return the tokens along CTC's best path, `[1, steps, tokens]`, without blanks and repeats."""
    best = np.argmax(answer[0], axis=-1)
    changed = np.concatenate([[True], best[1:] != best[:-1]])
    return [int(token) for token in best[changed & (best != 0)]]


def found_pixels(answer: Array, label: Array) -> Part:
    """Compare the pixels that a detector finds with those of the texts (Dice's coefficient).

    Args:
        answer: The probability of each pixel, `[1, 1, height, width]`.
        label: 1 where there is text, `[height, width]`.

    Returns:
        Twice the pixels that both name, and the pixels of both together.
    """
    found = np.asarray(answer).reshape(label.shape) >= FOUND
    truth = label > 0
    return 2.0 * float((found & truth).sum()), float(found.sum() + truth.sum())


QUALITIES: Final[dict[str, Quality]] = {
    function.__name__: function for function in (right_class, right_characters, found_pixels)
}


def total(parts: list[Part]) -> float:
    """Return the quality over samples.

    Args:
        parts: One for each sample.

    Returns:
        The sum of the first numbers over that of the second ones; 0 where nothing can count.
    """
    whole = sum(part[1] for part in parts)
    return sum(part[0] for part in parts) / whole if whole else 0.0


def dice(outputs: dict[str, Array], labels: Array) -> float:
    """Judge a detector's answers, in the form of a metric of one's own of `fleet build`.

    Args:
        outputs: The answers by the name of the output; there is one.
        labels: A mask for each sample.

    Returns:
        The quality.
    """
    (answers,) = outputs.values()
    return total([found_pixels(answer, mask) for answer, mask in zip(answers, labels, strict=True)])


def _edits(first: list[int], second: list[int]) -> int:
    """Return how many insertions, deletions and exchanges lead from one to the other."""
    row = list(range(len(second) + 1))
    for number, token in enumerate(first, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(second, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (token != other)),
            )
    return row[-1]
