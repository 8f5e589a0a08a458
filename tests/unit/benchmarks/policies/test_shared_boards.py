"""Draws of several models on one board, and what is judged on them."""

from __future__ import annotations

import math

import pytest

from agent.replay.together import replay_together
from benchmarks.policies.shared_boards import FAMILIES, MODELS, SharedDraw, draw_shared
from benchmarks.policies.shared_judged import SHARES, constant, engineer


@pytest.fixture(scope="module")
def drawn() -> SharedDraw:
    return draw_shared("calm", 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draw_is_possible_and_follows_from_its_seed(family: str) -> None:
    found = draw_shared(family, 11)
    assert found.trace.header.board.faults() == ()
    assert all(tick.inputs.faults() == () for tick in found.trace.ticks)
    assert all(model.spec.faults() == () for model in found.models.values())
    assert len(found.models) in MODELS
    assert found == draw_shared(family, 11)
    assert found != draw_shared(family, 12)


def test_levels_go_from_the_most_accurate_variants_to_the_lightest(drawn: SharedDraw) -> None:
    for name, model in drawn.models.items():
        assert drawn.levels[0][name] == model.candidates[0].name
        assert drawn.levels[-1][name] == model.candidates[-1].name


def test_an_engineer_allows_no_more_load_with_a_smaller_share(drawn: SharedDraw) -> None:
    places = [
        sum(
            [c.name for c in model.candidates].index(chosen[name])
            for name, model in drawn.models.items()
        )
        for chosen in (engineer(drawn, share) for share in SHARES)
    ]
    assert places == sorted(places, reverse=True)


def test_a_constant_combination_never_switches(drawn: SharedDraw) -> None:
    totals = replay_together(drawn.trace, drawn.models, constant(drawn.levels[0]))
    for name, model in totals.models.items():
        assert model.switches == 0
        assert math.isclose(model.served_s[drawn.levels[0][name]], drawn.trace.duration_s)
