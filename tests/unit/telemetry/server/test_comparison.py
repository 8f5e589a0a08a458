"""Whether two groups differ: the device is the unit of chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from telemetry.server.comparison import (
    Comparison,
    Floats,
    Group,
    alike,
    compared,
    expanded_level,
    mean_group,
    mean_of,
    quantile_group,
    quantile_of,
)

EDGES = np.geomspace(0.01, 100.0, 450)
BUCKET_ERROR = 0.01
VALUES = np.sqrt(EDGES[1:] * EDGES[:-1])
REQUESTS = 200


def fleet(
    chance: np.random.Generator, devices: tuple[int, int], statistic: str, *, longer: float = 1.0
) -> Comparison:
    """Compare two groups of unlike devices, which differ only by a factor."""
    sizes = sum(devices)
    own = chance.lognormal(0.0, 0.2, sizes)
    groups = []
    for members, factor in (
        (np.arange(sizes) < devices[0], 1.0),
        (np.arange(sizes) >= devices[0], longer),
    ):
        counts = np.where(members, chance.integers(REQUESTS // 2, REQUESTS, sizes), 0)
        drawn = [own[at] * factor * chance.lognormal(0.0, 0.5, n) for at, n in enumerate(counts)]
        groups.append(group(drawn, np.ones(sizes), statistic))
    return compared(*groups)


def group(drawn: list[Floats], weights: Floats, statistic: str) -> Group:
    counts = np.array([float(len(values)) for values in drawn])
    if statistic == "mean":
        totals = np.array([values.sum() for values in drawn])
        return mean_group(totals * weights, counts * weights)
    table = np.array([np.histogram(values, EDGES)[0] for values in drawn], float)
    q = float(statistic[1:]) / 100
    return quantile_group(q, table * weights[:, None], VALUES, BUCKET_ERROR, counts.sum())


def update(
    chance: np.random.Generator, devices: int, statistic: str, *, longer: float = 1.0
) -> Comparison:
    """Compare a release before and after an update that reaches the fast devices first."""
    own = np.sort(chance.lognormal(0.0, 0.4, devices))
    after = np.linspace(0.9, 0.1, devices) * REQUESTS
    drawn = [
        [
            level * factor * chance.lognormal(0.0, 0.5, int(n))
            for level, n in zip(own, ns, strict=True)
        ]
        for factor, ns in ((1.0, REQUESTS - after), (longer, after))
    ]
    weights = alike(*(np.array([float(len(values)) for values in side]) for side in drawn))
    return compared(*(group(side, w, statistic) for side, w in zip(drawn, weights, strict=True)))


@pytest.mark.parametrize("statistic", ["mean", "p50", "p95"])
@pytest.mark.parametrize("devices", [(6, 6), (8, 30)], ids=str)
def test_groups_that_do_not_differ_are_rarely_told_apart(
    statistic: str, devices: tuple[int, int]
) -> None:
    """Of 60 comparisons 5 % would be 3: more than 10 come once in two thousand times."""
    chance = np.random.Generator(np.random.PCG64(20261126))
    assert sum(fleet(chance, devices, statistic).is_told for _ in range(60)) <= 10


@pytest.mark.parametrize("statistic", ["mean", "p95"])
def test_a_clear_difference_is_told(statistic: str) -> None:
    chance = np.random.Generator(np.random.PCG64(7))
    found = fleet(chance, (30, 30), statistic, longer=1.5)
    assert found.is_told
    assert 0 < found.low < found.difference < found.high


def test_devices_that_are_in_both_groups_are_compared_with_themselves() -> None:
    """They differ by a factor of ten from each other, and by a twentieth before and after."""
    chance = np.random.Generator(np.random.PCG64(3))
    own, counts = chance.lognormal(0.0, 1.0, 20), np.full(20, 100.0)
    before, after = (Group(mean_of(own * factor * 100, counts), counts) for factor in (1.0, 1.05))
    found = compared(before, after)
    assert found.is_told
    assert found.difference == pytest.approx(0.05 * own.mean())


@pytest.mark.parametrize("statistic", ["mean", "p90"])
def test_an_update_that_reaches_fast_devices_first_does_not_look_faster(statistic: str) -> None:
    """Without equal weights 19 of 20 such updates are told, and a slower model looks faster."""
    chance = np.random.Generator(np.random.PCG64(20261127))
    assert sum(update(chance, 30, statistic).is_told for _ in range(40)) <= 7
    slower = [update(chance, 30, statistic, longer=1.3) for _ in range(20)]
    assert sum(found.low > 0 for found in slower) >= 15


def test_a_few_devices_that_are_much_slower_do_not_make_a_difference() -> None:
    chance = np.random.Generator(np.random.PCG64(4))
    told = 0
    for _ in range(60):
        sides = []
        for at in range(2):
            levels = np.where(chance.random(12) < 0.15, 5.0, 1.0)
            drawn = [level * chance.lognormal(0.0, 0.3, 100) for level in levels]
            nothing = [np.zeros(0)] * 12
            sides.append(
                group([*nothing, *drawn] if at else [*drawn, *nothing], np.ones(24), "mean")
            )
        told += compared(*sides).is_told
    assert told <= 8


def test_a_difference_within_a_bucket_is_not_told() -> None:
    counts = np.zeros((20, 2))
    counts[:, 0] = 100.0
    before = quantile_group(0.5, counts, np.array([1.0, 1.02]), 0.01, 2000.0)
    after = quantile_group(0.5, counts[:, ::-1], np.array([1.0, 1.02]), 0.01, 2000.0)
    assert not compared(before, after).is_told


def test_a_quantile_of_few_values_is_not_compared() -> None:
    counts = np.full((20, 1), 10.0)
    rare = quantile_group(0.99, counts, np.array([1.0]), 0.01, 200.0)
    assert "beyond" in compared(rare, rare).lacks


def test_with_few_devices_nothing_is_told() -> None:
    chance = np.random.Generator(np.random.PCG64(1))
    few = fleet(chance, (4, 40), "p95", longer=9.0)
    assert (few.has_interval, few.is_told) == (False, False)
    assert math.isnan(few.low)
    assert few.lacks == "fewer than 5 devices have values"
    # Where one of ten devices brings nearly all values, the others say next to nothing.
    counts = np.array([*[1.0] * 9, 10_000.0, *[0.0] * 10])
    lonely = Group(mean_of(counts, counts), counts)
    assert lonely.effective_devices < 2
    even = Group(mean_of(counts[::-1], counts[::-1] * 0 + 1), np.ones(20))
    assert even.effective_devices == 20
    assert "most of the values" in compared(lonely, even).lacks


def test_the_same_data_give_the_same_answer() -> None:
    first, second = (
        fleet(np.random.Generator(np.random.PCG64(5)), (9, 9), "p95") for _ in range(2)
    )
    assert first == second


def test_a_quantile_is_that_of_all_values_together() -> None:
    table = np.array([[1.0, 0.0, 9.0], [5.0, 5.0, 0.0]])
    values = np.array([1.0, 2.0, 3.0])
    once = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    found = quantile_of(0.5, table, values)(once)
    assert found[:2].tolist() == [2.0, 3.0]
    assert math.isnan(found[2])


def test_a_device_with_few_values_in_one_group_moves_no_quantile_of_its_own() -> None:
    """It alone is in the second group, so by how much its values count changes nothing."""
    table = np.array([[50.0, 40.0, 5.0, 4.0, 1.0]])
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    for share in (1.0, 0.06, 1e-9):
        found = [
            quantile_of(q, table * share, values)(np.ones((1, 1)))[0] for q in (0.0, 0.5, 0.95)
        ]
        assert found == [1.0, 1.0, 3.0]


def test_fewer_devices_leave_less_out() -> None:
    levels = [expanded_level(devices) for devices in (5, 10, 30, 1000)]
    assert levels == sorted(levels)
    assert levels[-1] == pytest.approx(0.025, rel=0.02)
