"""The search for the best combination: against all combinations, and its bound where it is cut."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.select.joint_search import EXACT, Option, best, cost_of

AMOUNTS = st.floats(0.0, 1.0)


class Steep(NamedTuple):
    """A device that costs little up to a limit of each kind, and then much."""

    load: float
    usual_load: float
    held_bytes: float
    slope: float
    bearable: float

    def cost(self, load: float, usual_load: float, held_bytes: float) -> float:
        sums = (load, usual_load, held_bytes)
        over = (max(a - b, 0.0) for a, b in zip(sums, self[:3], strict=True))
        return self.slope * math.fsum(over) + 0.001 * load

    def bears(self, load: float, usual_load: float, held_bytes: float) -> bool:
        return max(load, usual_load, held_bytes) <= self.bearable


OPTIONS = st.builds(
    Option, st.just("v"), st.floats(0.0, 8.0), AMOUNTS, AMOUNTS, AMOUNTS, st.booleans()
)


def models(most: int, options: int) -> st.SearchStrategy[list[list[Option]]]:
    """Return models of which the first option of each may always go on."""
    stays = OPTIONS.map(lambda option: option._replace(rises=False))
    one = st.builds(lambda first, rest: [first, *rest], stays, st.lists(OPTIONS, max_size=options))
    return st.lists(one, min_size=1, max_size=most)


DEVICES = st.builds(
    Steep, st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(0.0, 50.0),
    st.floats(0.0, 4.0),
)  # fmt: skip


def least(listed: list[list[Option]], device: Steep) -> float:
    """Return what the best combination costs, by a look at all."""
    numbers = itertools.product(*(range(len(options)) for options in listed))
    return min(cost_of(listed, picks, device) for picks in numbers)


@settings(max_examples=300, deadline=None)
@given(models(4, 5), DEVICES)
def test_it_finds_what_a_look_at_all_combinations_finds(
    listed: list[list[Option]], device: Steep
) -> None:
    found = best(listed, device, [0] * len(listed))
    assert found.gap == 0.0
    assert math.isclose(found.cost, least(listed, device), rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(
        found.cost, cost_of(listed, found.picks, device), rel_tol=1e-9, abs_tol=1e-9
    )


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False), DEVICES)
def test_five_models_of_six_variants_that_may_be_parked_are_searched_to_the_end(
    chance: object, device: Steep
) -> None:
    draw = chance.uniform  # type: ignore[attr-defined]  # of a random.Random
    listed = [
        [Option("v", draw(0, 3), draw(0, 1), draw(0, 1), draw(0, 1)) for _ in range(7)]
        for _ in range(5)
    ]
    assert math.prod(map(len, listed)) <= EXACT
    found = best(listed, device)
    assert found.gap == 0.0
    assert math.isclose(found.cost, least(listed, device), rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.0, 10.0))
def test_beyond_that_size_the_best_is_within_the_gap_that_is_told(
    chance: object, slope: float
) -> None:
    draw = chance.uniform  # type: ignore[attr-defined]  # of a random.Random
    listed = [
        [Option("v", draw(0, 3), draw(0, 1), draw(0, 1), draw(0, 1)) for _ in range(9)]
        for _ in range(10)
    ]
    # A device without limits adds a line, so the best option of each model is known.
    device = Steep(0.0, 0.0, 0.0, slope, 10.0)
    true = math.fsum(
        min(o.loss + slope * (o.load + o.usual_load + o.held_bytes) + 0.001 * o.load for o in each)
        for each in listed
    )
    found = best(listed, device, [0] * 10)
    assert found.bound <= true + 1e-9
    assert found.cost >= true - 1e-9
    assert found.cost <= cost_of(listed, [0] * 10, device)


@given(models(4, 5), DEVICES)
def test_equal_inputs_give_equal_combinations(listed: list[list[Option]], device: Steep) -> None:
    assert best(listed, device) == best(listed, device)


def test_more_work_does_not_begin_where_the_device_does_not_bear_it() -> None:
    light, heavy = Option("light", 1.0, 0.1, 0.1, 0.1), Option("heavy", 0.0, 0.9, 0.9, 0.9)
    device = Steep(9.0, 9.0, 9.0, 0.0, 0.5)
    assert best([[light, heavy._replace(rises=True)]], device).picks == (0,)
    assert best([[light, heavy]], device).picks == (1,)
