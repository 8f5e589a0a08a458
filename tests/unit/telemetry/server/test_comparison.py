"""Whether two groups differ: the device is the unit of chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from telemetry.server.comparison import (
    Comparison,
    Group,
    compared,
    expanded_level,
    mean_of,
    quantile_of,
    student_t,
)

EDGES = np.geomspace(0.01, 100.0, 150)
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
        if statistic == "mean":
            totals = np.array([values.sum() for values in drawn])
            groups.append(Group(mean_of(totals, counts.astype(float)), counts.astype(float)))
        else:
            table = np.array([np.histogram(values, EDGES)[0] for values in drawn], float)
            q = float(statistic[1:]) / 100
            groups.append(Group(quantile_of(q, table, VALUES), counts.astype(float)))
    return compared(*groups)


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


def test_with_few_devices_nothing_is_told() -> None:
    chance = np.random.Generator(np.random.PCG64(1))
    few = fleet(chance, (4, 40), "p95", longer=9.0)
    assert (few.has_interval, few.is_told) == (False, False)
    assert math.isnan(few.low)
    # Where one of ten devices brings nearly all values, the others say next to nothing.
    counts = np.array([*[1.0] * 9, 10_000.0, *[0.0] * 10])
    lonely = Group(mean_of(counts, counts), counts)
    assert lonely.effective_devices < 2
    even = Group(mean_of(counts[::-1], counts[::-1] * 0 + 1), np.ones(20))
    assert even.effective_devices == 20
    assert not compared(lonely, even).has_interval


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


@pytest.mark.parametrize(
    ("degrees", "expected"), [(4, 2.7764), (9, 2.2622), (29, 2.0452), (1000, 1.9623)]
)
def test_quantiles_of_students_t_are_those_of_the_tables(degrees: int, expected: float) -> None:
    assert student_t(0.975, degrees) == pytest.approx(expected, rel=3e-3)


def test_fewer_devices_leave_less_out() -> None:
    levels = [expanded_level(devices) for devices in (5, 10, 30, 1000)]
    assert levels == sorted(levels)
    assert levels[-1] == pytest.approx(0.025, rel=0.02)
