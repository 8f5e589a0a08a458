"""Says which candidates a model with `If`, `Loop` or `Scan` cannot have. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from packager.plan.figures import ModelFacts
from packager.plan.recipes import MIN_SHARE, Recipe


def bodies_obstacles(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Say why a recipe does nothing for a model with bodies.

    Args:
        recipe: The recipe.
        facts: What is known of the model.

    Yields:
        Reasons; nothing where the model has no operator that matters.
    """
    present = set(facts.operators)
    yield from (reason for name, reason in recipe.unfit.items() if name in present)
    inside = sum(facts.inner_weights.get(name, 0.0) for name in recipe.quantizes)
    if inside == 0.0:
        return
    yield from (reason for name, reason in recipe.unfit_bodies.items() if name in present)
    outside = sum(facts.weights.get(name, 0.0) for name in recipe.quantizes) - inside
    if not recipe.enters_bodies and outside < MIN_SHARE:
        yield (
            f"it does not quantize within If, Loop and Scan, and only {max(outside, 0.0):.1%} of "
            "the weights that it could quantize are outside of them"
        )
