"""Inputs of texts: which candidates can take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packager.plan.figures import ModelFacts
from packager.plan.recipes import Recipe
from packager.plan.runtimes import Runtimes
from wire.package.tensors import TensorSpec


def text_inputs(specs: Iterable[TensorSpec]) -> list[str]:
    """Return the names of inputs that take texts."""
    return [spec.name for spec in specs if spec.datatype == "BYTES"]


def unreadable(recipe: Recipe, facts: ModelFacts, runtimes: Runtimes) -> Iterator[str]:
    """Say why a candidate cannot take a model's texts; nothing where the model has none.

    Args:
        recipe: How the candidate is made.
        facts: What is known of the model.
        runtimes: What can be built.

    Yields:
        Reasons.
    """
    names = text_inputs(facts.inputs)
    if not names:
        return
    if not runtimes.named(recipe.runtime).texts:
        able = " or ".join(row.name for row in runtimes.rows if row.texts)
        yield f"input {names[0]!r} takes texts, which {able} reads, but not {recipe.runtime}"
    if recipe.repairs:
        yield f"input {names[0]!r} takes texts, and repairs are made for models of numbers alone"
