"""Metrics of sequences of tokens: word and character error rates, and perplexity.

Rules:
- Labels are token numbers, shape (samples, length); negative numbers pad, or mark places that do
  not count.
- An output of whole numbers holds tokens. An output of scores (samples, steps, tokens) is decoded
  as that of connectionist temporal classification: the best token of each step, repeats merged,
  blanks dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from packager.errors import DataError
from packager.judge.sums import Options, Rows, Sums, in_blocks, lengths, share
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor

BLANK: Final = "0"
"""The blank's number where the user names none, as in PyTorch's CTCLoss."""

TOKEN_AXES: Final = 2
SCORE_AXES: Final = 3

MOST_NATS: Final = 100.0
"""No token counts as less likely than e^-100, about the least float32; else one token that a
variant rules out would make its perplexity infinite."""

_PROBABILITY_ERROR: Final = 1e-2


def cer(answers: Tensor, reference: Tensor, labels: Tensor | None, options: Options) -> Sums:
    """Return the edits and the length of each sample, in tokens; the metric is their ratio.

    Source:
        V. I. Levenshtein, "Binary codes capable of correcting deletions, insertions, and
        reversals", Soviet Physics Doklady 10 (1966), 707-710. A. Graves et al., "Connectionist
        temporal classification", ICML 2006, section 3.2: best path decoding, and 2.1: the label
        error rate; as usual, the rate is that of all samples together.
    """
    return _rates(answers, reference, labels, options, words=False)


def wer(answers: Tensor, reference: Tensor, labels: Tensor | None, options: Options) -> Sums:
    """Return the edits and the length of each sample, in words; the metric is their ratio.

    The token `space` separates words; where the user names none, each token is a word.
    """
    return _rates(answers, reference, labels, options, words=True)


def perplexity(
    answers: Tensor, _reference: Tensor, labels: Tensor | None, options: Options
) -> Sums:
    """Return the sum of the negative log-likelihoods of each sample's tokens, and their number.

    The metric is `exp(sum / number)`. The label at a place is the token that the output at that
    place predicts.

    Source:
        F. Jelinek et al., "Perplexity - a measure of the difficulty of speech recognition tasks",
        JASA 62 (1977), S63.
    """
    chances = options.get("scores") == "probabilities"

    def score(ours: Tensor, _theirs: Tensor, known: Tensor | None) -> Tensor:
        tokens = np.asarray(known)
        counted = tokens >= 0
        values = np.asarray(ours, np.float64)
        own = np.take_along_axis(values, np.where(counted, tokens, 0)[..., None], axis=-1)[..., 0]
        if chances:
            nats = -np.log(np.maximum(own, np.exp(-MOST_NATS)))
        else:
            most = values.max(axis=-1, keepdims=True)
            total = np.log(np.exp(values - most).sum(axis=-1)) + most[..., 0]
            nats = np.minimum(total - own, MOST_NATS)
        sums = np.where(counted, nats, 0.0).reshape(len(tokens), -1).sum(axis=1)
        return np.stack([sums, counted.reshape(len(tokens), -1).sum(axis=1)], axis=1)

    def metric(row: Rows) -> float:
        return float(np.exp(row[0] / row[1])) if row[1] else 1.0

    return Sums(in_blocks(score, answers, answers, labels), metric, lengths)


def are_probabilities(scores: Tensor) -> bool:
    """Tell whether scores along the last axis are probabilities, by the first sample."""
    values = np.asarray(scores[:1], np.float64)
    whole = np.abs(values.sum(axis=-1) - 1.0) <= _PROBABILITY_ERROR
    return bool((values >= 0).all() and whole.all())


def check_tokens(metric: str, output: str, scores: Tensor, labels: Tensor | None) -> None:
    """Refuse an output, or labels, that are no sequences of tokens.

    Args:
        metric: `wer` or `cer`.
        output: The output.
        scores: Its values, samples along the first axis.
        labels: The labels, if there are any.

    Raises:
        DataError: They are none.
    """
    tokens = scores.dtype.kind in "iu" and scores.ndim == TOKEN_AXES
    scored = scores.dtype.kind == "f" and scores.ndim == SCORE_AXES
    if not tokens and not scored:
        raise DataError(
            f"metric {metric}: the output {output!r} is {scores.dtype} of shape "
            f"{list(scores.shape[1:])} for each sample, but tokens are needed, integers (length), "
            "or scores of tokens, floats (steps, tokens)"
        )
    if labels is None:
        return
    if labels.dtype.kind not in "iu" or labels.ndim != TOKEN_AXES:
        raise DataError(
            f"metric {metric}: labels are {labels.dtype} of shape {list(labels.shape)}, but token "
            "numbers, integers (samples, length), are needed, padded with -1"
        )
    if int(labels.max()) < 0:
        raise DataError(f"metric {metric}: the labels hold no token")
    if scored and int(labels.max()) >= scores.shape[-1]:
        raise DataError(
            f"metric {metric}: labels go up to {int(labels.max())}, but the model's tokens from 0 "
            f"to {scores.shape[-1] - 1}"
        )


def check_next_tokens(output: str, scores: Tensor, labels: Tensor | None) -> None:
    """Refuse what has no perplexity.

    Args:
        output: The output.
        scores: Its values, samples along the first axis.
        labels: The labels, if there are any.

    Raises:
        DataError: There are no labels, or they are not tokens for each place of the output.
    """
    if labels is None or labels.dtype.kind not in "iu" or labels.shape != scores.shape[:-1]:
        given = (
            "there are no labels"
            if labels is None
            else f"labels are {labels.dtype} of shape {list(labels.shape)}"
        )
        raise DataError(
            f"metric perplexity: {given}, but for the output {output!r} token numbers, integers of "
            f"shape {list(scores.shape[:-1])}, are needed",
            remedy="give for each place the token that comes next, and -1 where none counts",
        )
    if int(labels.max()) < 0 or int(labels.max()) >= scores.shape[-1]:
        raise DataError(
            f"metric perplexity: labels go up to {int(labels.max())}, but tokens from 0 to "
            f"{scores.shape[-1] - 1} are needed"
        )


def decoded(scores: Tensor, options: Options) -> list[list[int]]:
    """Return the tokens of each sample.

    Args:
        scores: Tokens (samples, length), or scores (samples, steps, tokens).
        options: `blank`, the number of the blank, and `end`, the token that ends a sequence.

    Returns:
        A list of tokens for each sample.
    """
    found = []
    scored = scores.ndim == SCORE_AXES
    blank = int(options.get("blank", BLANK)) if scored else None
    end = int(options["end"]) if "end" in options else None
    for block in blocks(scores):
        rows: NDArray[np.intp] = np.asarray(scores[block])
        for row in rows.argmax(axis=-1) if scored else rows:
            if scored:
                row = row[np.concatenate([[True], row[1:] != row[:-1]])]  # noqa: PLW2901
            tokens = [int(t) for t in row if t >= 0 and t != blank]
            found.append(tokens[: tokens.index(end)] if end in tokens else tokens)
    return found


def _rates(
    answers: Tensor, reference: Tensor, labels: Tensor | None, options: Options, *, words: bool
) -> Sums:
    ours = decoded(answers, options)
    if labels is None:
        truth = decoded(reference, options)
    else:
        truth = decoded(np.asarray(labels), {k: v for k, v in options.items() if k == "end"})
    space = int(options["space"]) if words and "space" in options else None
    table = np.empty((len(ours), 2), np.float64)
    for row, (own, known) in enumerate(zip(ours, truth, strict=True)):
        one: Sequence[object] = own if space is None else _words(own, space)
        other: Sequence[object] = known if space is None else _words(known, space)
        numbers: dict[object, int] = {}  # the library compares hashes, which may be equal by chance
        one, other = ([numbers.setdefault(w, len(numbers)) for w in part] for part in (one, other))
        table[row] = Levenshtein.distance(one, other), len(other)
    return Sums(table, share, lengths)


def _words(tokens: list[int], space: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    word: list[int] = []
    for token in (*tokens, space):
        if token != space:
            word.append(token)
        elif word:
            found.append(tuple(word))
            word = []
    return found
