"""The space of a search: all that could be built for a model and its profiles. Pure.

The space has what a build without a search tries, the repairs, the recipes on request that are safe
on any device, and each recipe with other values of its options (`Recipe.alternatives`). A recipe
that starts from another one's files is also made from those of its variations, so the steps are
searched together.

Rules:
- The planner plans the space as it plans any build: what a profile cannot have is not in it.
- What a build without a search tries comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec

from packager.plan.recipes import Recipe
from packager.plan.runtimes import Runtimes
from packager.plan.values import Candidate, Plan, Step


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, as the choices that lead to it."""

    name: str
    choices: tuple[tuple[str, str], ...]
    """Pairs of a parameter and its value. Which parameter comes next depends on the values before;
    the values that a parameter may have do not."""


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe of the space."""

    recipe: Recipe
    of: str
    """The recipe in the table of runtimes that it varies."""

    values: dict[str, str] = {}
    """Option to value, for those that have alternatives."""

    usual: bool = False
    """Whether a build without a search tries it."""


def variations(runtimes: Runtimes, *, repairs: bool = True) -> dict[str, Variation]:
    """Return the recipes of the space.

    Args:
        runtimes: What can be built.
        repairs: Whether repairs are part of the space.

    Returns:
        The variations by the names of their recipes.
    """
    known = runtimes.recipes
    found: dict[str, Variation] = {}
    for recipe in known.values():
        if recipe.repairs and not repairs:
            found[recipe.name] = Variation(recipe=recipe, of=recipe.name)
            continue
        for varied in _varied(recipe):
            found[varied.recipe.name] = varied
    for recipe in known.values():
        if recipe.base:
            del found[recipe.name]
            for start in _starts(recipe, known, found):
                for varied in _varied(recipe, start):
                    found[varied.recipe.name] = varied
    return found


def searched_runtimes(runtimes: Runtimes, *, repairs: bool = True) -> Runtimes:
    """Return the runtimes with all recipes of the space; arguments as for `variations`."""
    found = variations(runtimes, repairs=repairs).values()
    return Runtimes(
        tuple(
            msgspec.structs.replace(
                row, recipes=tuple(v.recipe for v in found if v.recipe.runtime == row.name)
            )
            for row in runtimes.rows
        )
    )


def space(plan: Plan, found: dict[str, Variation]) -> tuple[Point, ...]:
    """Return the points of a planned space, those that a build without a search tries first.

    Args:
        plan: What was planned with `searched_runtimes`.
        found: The variations of the same runtimes.

    Returns:
        The points, without the reference variant, which is always built.
    """
    points = [
        (found[recipe_name(candidate)], candidate)
        for candidate in plan.candidates
        if candidate.name not in plan.references
    ]
    points.sort(key=lambda pair: not pair[0].usual)
    return tuple(_point(varied, candidate) for varied, candidate in points)


def recipe_name(candidate: Candidate) -> str:
    """Return the name of the recipe of the space that makes a candidate."""
    if candidate.target is None:
        return candidate.name
    return candidate.name.removesuffix(f"-{candidate.target.name}")


def steps_of(plan: Plan, candidates: tuple[Candidate, ...]) -> tuple[Step, ...]:
    """Return the steps that some candidates need, in the order of the plan."""
    known = {step.name: step for step in plan.steps}
    wanted: set[str] = set()
    todo = [name for candidate in candidates for name in candidate.needed]
    while todo:
        name = todo.pop()
        if name in known and name not in wanted:
            wanted.add(name)
            todo += known[name].inputs.values()
    return tuple(step for step in plan.steps if step.name in wanted)


def _varied(recipe: Recipe, start: Variation | None = None) -> Iterator[Variation]:
    """Yield a recipe with all combinations of its options' values, the usual one first."""
    options = {
        name: (recipe.options[name], *values) for name, values in recipe.alternatives.items()
    }
    before = {} if start is None else {f"from {name}": v for name, v in _start_values(start)}
    base = "" if start is None else start.recipe.name
    for values in product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        other = [n for n, value in chosen.items() if value != recipe.options[n]]
        parts = [
            recipe.name,
            *(_label(start) if start else ()),
            *(_word(n, chosen[n]) for n in other),
        ]
        yield Variation(
            recipe=msgspec.structs.replace(
                recipe,
                name="-".join(parts),
                precision="-".join((recipe.precision, *parts[1:])),
                options={**recipe.options, **chosen},
                base=base or recipe.base,
                repairs="",
                on_request=recipe.on_request and not recipe.searched,
            ),
            of=recipe.name,
            values={**before, **{name: str(value) for name, value in chosen.items()}},
            usual=len(parts) == 1 and not recipe.repairs and not recipe.on_request,
        )


def _starts(
    recipe: Recipe, known: dict[str, Recipe], found: dict[str, Variation]
) -> Iterator[Variation]:
    """Yield the variations that a recipe can start from: those of its base and of its like."""
    base = known[recipe.base]
    for varied in tuple(found.values()):
        other = known[varied.of]
        alike = base.family and (other.family, other.kind, other.vnni) == (
            base.family,
            base.kind,
            base.vnni,
        )
        if other.name == base.name or alike:
            yield varied


def _start_values(start: Variation) -> Iterator[tuple[str, str]]:
    yield "recipe", start.of
    yield from ((f"{start.of} {name}", value) for name, value in start.values.items())


def _label(start: Variation) -> tuple[str, ...]:
    """Return what tells a start from the usual one: the end of its precision."""
    words = start.recipe.precision.split("-")[1:]
    return ("-".join(words),) if words else ()


def _word(option: str, value: Any) -> str:  # noqa: ANN401 - options are of any plain type
    if isinstance(value, bool):
        return option if value else f"not-{option}"
    return value if isinstance(value, str) else f"{option}{value}"


def _point(varied: Variation, candidate: Candidate) -> Point:
    of = varied.of
    choices = [("runtime", varied.recipe.runtime), (f"{varied.recipe.runtime} recipe", of)]
    choices += [(f"{of} {name}", value) for name, value in varied.values.items()]
    if candidate.target is not None:
        choices.append((f"{of} processor", candidate.target.name))
    return Point(name=candidate.name, choices=tuple(choices))
