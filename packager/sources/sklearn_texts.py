"""What scikit-learn models of texts need: options for their conversion, and texts to try them on.

Rules:
- The words of an ONNX model are those of scikit-learn's `token_pattern`: skl2onnx alone would cut
  words at letters that are not ASCII.
- The locale of lower case is `C.UTF-8`, which glibc from 2.35 on brings along. ONNX's default,
  `en_US.UTF-8`, has to be installed, and a device without it could not load the model.

Source:
    skl2onnx, `convert_sklearn`, option `tokenexp`; ONNX, operator StringNormalizer, `locale`; ONNX
    Runtime, operator Tokenizer, whose expressions are those of RE2.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import ModelError

LOCALE: Final = "C.UTF-8"
USUAL_PATTERN: Final = r"(?u)\b\w\w+\b"
"""scikit-learn's default: words of two letters, digits or underscores, or more."""

SAME_IN_RE2: Final = r"[\p{L}\p{N}_]{2,}"
_MAX_WORDS: Final = 20
_OTHERS: Final = (
    "",
    "a",
    "I",
    "é",
    "über",
    "NAÏVE",
    "don't",
    "x-ray",
    "3",
    "1999",
    "_",
    "字",
    "?!",
)
"""What vocabularies seldom hold: short words, accents, digits, punctuation."""


def vectorizer_of(estimator: Any) -> Any | None:  # noqa: ANN401 - sklearn is untyped
    """Return what counts the words of an estimator that takes texts; None where it takes numbers.

    Args:
        estimator: An estimator or a pipeline.

    Raises:
        ModelError: It takes texts in a way that cannot be converted.
    """
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

    first = estimator
    while getattr(first, "steps", None):
        first = first.steps[0][1]
    if isinstance(first, HashingVectorizer):
        raise ModelError(
            "skl2onnx cannot convert a HashingVectorizer",
            remedy="use a CountVectorizer or a TfidfVectorizer with max_features",
        )
    return first if isinstance(first, CountVectorizer) else None


def options_of(vectorizer: Any) -> dict[str, str]:  # noqa: ANN401 - sklearn is untyped
    """Return skl2onnx's options for what counts words."""
    usual = vectorizer.analyzer == "word" and vectorizer.token_pattern == USUAL_PATTERN
    return {"tokenexp": SAME_IN_RE2} if usual and vectorizer.tokenizer is None else {}


def set_locale(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Name the locale of lower case in a model that skl2onnx has made."""
    from onnx import helper

    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [attribute for attribute in node.attribute if attribute.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("locale", LOCALE)])


def random_texts(vectorizer: Any, count: int) -> NDArray[Any]:  # noqa: ANN401 - sklearn is untyped
    """Return texts of a model's own words and of others, in lower, upper and mixed case.

    Args:
        vectorizer: What counts the words, fitted.
        count: How many texts.

    Returns:
        An array of objects; equal vocabularies give equal texts.
    """
    random = np.random.default_rng(0)
    known = sorted(vectorizer.vocabulary_)
    words = np.array([*known, *_OTHERS], np.object_)
    known_share = max(1 - len(_OTHERS) / len(words), 0.8)
    weights = np.full(len(words), (1 - known_share) / len(_OTHERS))
    weights[: len(known)] = known_share / len(known)
    cases = (str, str.lower, str.upper, str.title)
    texts = np.empty(count, np.object_)
    for place in range(count):
        chosen = random.choice(words, random.integers(0, _MAX_WORDS), p=weights)
        change = cases[random.integers(len(cases))]
        texts[place] = change(str(random.choice([" ", "  ", ", ", "\n"])).join(chosen.tolist()))
    return texts
