"""The space of a search, and who chooses from it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packager.errors import BuildError
from packager.runtimes.table import RUNTIMES
from packager.search.goals import DEFAULT_GOALS, read_goals
from packager.search.sampler import Method, Score, open_sampler
from packager.search.settings import DEFAULT_CAP, Search, read_search
from packager.search.space import Point, searched_runtimes, variations
from wire.profile import NAME_PATTERN

LONGEST_TARGET = "-x86-64-v4-vnni"


def test_the_space_has_every_recipe_of_a_build_without_a_search_as_it_is() -> None:
    found = variations(RUNTIMES)
    usual = {name: v for name, v in found.items() if v.usual}
    for recipe in RUNTIMES.recipes.values():
        assert found[recipe.name].of == recipe.name
        assert found[recipe.name].recipe.options == recipe.options
        assert (recipe.name in usual) == (not recipe.repairs and not recipe.on_request)


def test_every_variation_has_a_plain_name_of_its_own_and_other_options() -> None:
    recipes = [recipe for row in searched_runtimes(RUNTIMES).rows for recipe in row.recipes]
    assert len({recipe.name for recipe in recipes}) == len(recipes) > len(RUNTIMES.recipes)
    made = {repr((r.runtime, r.kind, r.base, r.options, r.session, r.precision)) for r in recipes}
    assert len(made) == len(recipes)
    for recipe in recipes:
        name = recipe.name + (LONGEST_TARGET if recipe.targeted else "")
        assert NAME_PATTERN.fullmatch(name), name


def test_a_compiled_recipe_starts_from_every_calibration() -> None:
    bases = {
        v.recipe.base.removeprefix("onnxruntime-int8")
        for v in variations(RUNTIMES).values()
        if v.of == "tvm-int8"
    }
    assert {"", "-samples64", "-entropy", "-percentile", "-percentile-percentile99.9"} <= bases
    assert not any("reduced" in base for base in bases)


def test_what_only_a_user_can_answer_for_stays_on_request() -> None:
    found = variations(RUNTIMES)
    assert found["onnxruntime-fp32-offline"].recipe.on_request
    assert not found["onnxruntime-int8-entropy"].recipe.on_request


def test_without_repairs_the_space_has_none() -> None:
    left = variations(RUNTIMES, repairs=False)["onnxruntime-int8-repaired"].recipe
    assert left.repairs
    assert not variations(RUNTIMES)["onnxruntime-int8-repaired"].recipe.repairs


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Point, ...]:
    """Draw trees of choices, of which some leaves are missing."""
    points: list[Point] = []
    for runtime in "ab":
        for recipe in range(draw(st.integers(1, 2))):
            for value in ("x", "y") if draw(st.booleans()) else ("x",):
                name = f"{runtime}{recipe}{value}"
                choices = (
                    ("runtime", runtime),
                    (f"{runtime} recipe", f"{recipe}"),
                    (f"{runtime}{recipe} option", value),
                )
                points.append(Point(name=name, choices=choices))
    return tuple(draw(st.lists(st.sampled_from(points), min_size=1, unique_by=lambda p: p.name)))


def walked(method: Method, points: tuple[Point, ...], seed: int) -> list[str]:
    sampler = open_sampler(method, points, goals=2, cap=len(points), seed=seed)
    found: list[str] = []
    while (point := sampler.ask()) is not None:
        found.append(point.name)
        worse = float(points.index(point))
        sampler.tell(point, Score(losses=(worse, -worse), misses=(worse - 1,)))
    return found


@pytest.mark.parametrize("method", ["exhaustive", "random", "tpe"])
@settings(max_examples=15, deadline=None)
@given(points=spaces(), seed=st.integers(0, 3))
def test_every_point_is_tried_once_in_an_order_that_the_seed_decides(
    method: Method, points: tuple[Point, ...], seed: int
) -> None:
    if method != "exhaustive":
        pytest.importorskip("optuna")
    tried = walked(method, points, seed)
    assert sorted(tried) == sorted(point.name for point in points)
    assert tried == walked(method, points, seed)


def test_tpe_comes_back_to_what_was_good() -> None:
    pytest.importorskip("optuna")
    points = tuple(
        Point(name=f"{r}{n}", choices=(("runtime", r), (f"{r} option", str(n))))
        for r in "ab"
        for n in range(30)
    )
    sampler = open_sampler("tpe", points, goals=1, cap=30, seed=0)
    tried: list[str] = []
    for _ in range(30):
        point = sampler.ask()
        assert point is not None
        tried.append(point.name)
        sampler.tell(point, Score(losses=(float(point.name[0] == "a"),), misses=()))
    later = tried[15:]
    assert sum(name[0] == "b" for name in later) > len(later) / 2


def test_options_of_a_search_are_read() -> None:
    assert read_search(None, None, (), None) is None
    assert read_search("exhaustive", None, (), None) == Search(
        method="exhaustive", cap=DEFAULT_CAP, goals=DEFAULT_GOALS
    )
    found = read_search("exhaustive", 3, ("size",), 7)
    assert found == Search(method="exhaustive", cap=3, goals=read_goals(("size",)), seed=7)


@pytest.mark.parametrize(
    ("cap", "goals", "seed", "fault"),
    [
        (3, (), None, "--search-cap has no use without --search"),
        (None, ("size",), None, "--goal has no use without --search"),
        (None, (), 1, "--search-seed has no use without --search"),
    ],
)
def test_options_of_a_search_without_one_are_refused(
    cap: int | None, goals: tuple[str, ...], seed: int | None, fault: str
) -> None:
    with pytest.raises(BuildError, match=fault):
        read_search(None, cap, goals, seed)


def test_a_search_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BuildError, match="there is no search 'grid'; use exhaustive, random, tpe"):
        read_search("grid", None, (), None)
