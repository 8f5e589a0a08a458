"""Whether requests have moved away from the reference: the device is the unit of chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from telemetry.server.drift import (
    FALSE_ALARMS,
    LEAST_COUNT,
    Drift,
    Floats,
    by_chance,
    drift,
    stability_indexes,
    told,
)

DECILES = np.full(10, 0.1)
LOW_MARGINS = np.array([0.1, 0.9])


def fleet(
    chance: np.random.Generator, usual: Floats, now: Floats, *, devices: int, alike: float = 50.0
) -> Drift:
    """Draw a reference of 500 samples, and devices with shares of their own."""
    own = chance.dirichlet(now * alike, devices)
    counts = np.array([chance.multinomial(chance.integers(100, 500), each) for each in own], float)
    return drift(chance.multinomial(500, usual).astype(float), counts)


@pytest.mark.parametrize("usual", [DECILES, LOW_MARGINS], ids=["deciles", "low margins"])
def test_fleets_that_have_not_moved_are_rarely_named(usual: Floats) -> None:
    """Of 60 answers 1 % would be less than one: four come once in three hundred times."""
    chance = np.random.Generator(np.random.PCG64(20261126))
    found = [fleet(chance, usual, usual, devices=12).chance for _ in range(60)]
    assert sum(each <= FALSE_ALARMS for each in found) < 4


def test_a_shift_is_told_and_sized() -> None:
    chance = np.random.Generator(np.random.PCG64(7))
    now = DECILES * 0.6
    now[0] += 0.4
    found = fleet(chance, DECILES, now, devices=30)
    assert found.chance <= FALSE_ALARMS
    assert found.units == 30
    assert found.stability_index > 0.25
    assert 0.2 < found.distance < 1


def test_many_requests_of_few_devices_tell_nothing() -> None:
    reference = np.full(10, 50.0)
    counts = np.full((4, 10), 1e6)
    counts[:, 0] = 9e6
    few = drift(reference, counts)
    assert (few.can_tell, few.units) == (False, 4)
    assert few.stability_index > 0.25
    # One of ten devices brings nearly all requests: the others say next to nothing.
    lonely = drift(reference, np.vstack((counts[:1], np.full((9, 10), 1.0))))
    assert not lonely.can_tell
    assert lonely.lacks == "a few of the 10 devices bring most of the requests"
    assert few.lacks == "fewer than 5 devices have counted requests"
    # The same shares at six devices that bring equally many.
    assert drift(reference, np.repeat(counts[:1], 6, axis=0)).chance <= FALSE_ALARMS


def test_equal_shares_are_no_drift() -> None:
    found = drift(np.full(10, 100.0), np.full((8, 10), 30.0))
    assert found.stability_index == pytest.approx(0.0, abs=1e-12)
    assert found.distance == pytest.approx(0.0, abs=1e-6)
    assert found.samples == 8 * 10 * 30
    assert found.chance == pytest.approx(1.0)


def test_the_figures_are_those_of_the_definitions() -> None:
    """Counts so great that half a request more in each bin changes nothing."""
    found = drift(np.array([5e8, 5e8]), np.array([[9e8, 1e8]]))
    assert found.stability_index == pytest.approx(0.4 * math.log(9), rel=1e-6)
    middle = (0.7, 0.3)
    divergence = sum(
        share * math.log2(share / other) / 2
        for shares in ((0.9, 0.1), (0.5, 0.5))
        for share, other in zip(shares, middle, strict=True)
    )
    assert found.distance == pytest.approx(math.sqrt(divergence), rel=1e-6)
    apart = drift(np.array([1e9, 0.0]), np.array([[0.0, 1e9]]))
    assert apart.distance == pytest.approx(1.0, abs=1e-3)
    assert math.isfinite(apart.stability_index)


def test_bins_that_are_rare_in_the_reference_count_as_one() -> None:
    rare = LEAST_COUNT - 1
    reference = np.array([200.0, 200.0, rare, rare, 0.0])
    counts = np.tile([20.0, 20.0, 0.0, 1.0, 0.0], (10, 1))
    other = np.tile([20.0, 20.0, 1.0, 0.0, 0.0], (10, 1))
    assert drift(reference, counts) == drift(reference, other)
    # What the evaluation never had is still seen.
    counts[:, 4] = 20.0
    assert drift(reference, counts).chance <= FALSE_ALARMS


def test_a_device_without_requests_is_left_out() -> None:
    reference, counts = np.full(4, 100.0), np.full((7, 4), 9.0)
    assert drift(reference, np.vstack((counts, np.zeros((3, 4))))) == drift(reference, counts)


def test_the_same_data_give_the_same_answer() -> None:
    first, second = (
        fleet(np.random.Generator(np.random.PCG64(5)), DECILES, DECILES, devices=9)
        for _ in range(2)
    )
    assert first == second


def test_an_answer_of_many_parts_has_one_bound() -> None:
    def part(chance: float) -> Drift:
        return Drift(0.1, 0.1, 100.0, 10, chance)

    assert told([]) == ()
    assert told([part(0.009)]) == (True,)
    assert told([part(0.009), part(0.5)]) == (False, False)
    assert told([part(0.009), part(0.004)]) == (True, True)  # Holm: the second has the whole 1 %
    assert told([part(math.nan), part(0.009)]) == (False, True)


def test_what_chance_gives_a_device_with_few_samples_is_known() -> None:
    chance = np.random.default_rng(3)
    reference = np.array([400.0, 300.0, 200.0, 100.0])
    for samples in (50, 500):
        drawn = chance.multinomial(samples, reference / reference.sum(), size=400).astype(float)
        found = float(np.mean(stability_indexes(reference, drawn)))
        # The reference is taken for the world here, so its own error is left out.
        expected = float(by_chance(reference, drawn)[0]) - 3 / reference.sum()
        assert found == pytest.approx(expected, rel=0.2)
